// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Messages: the kernel's four, and `grow`.
use std::rc::Rc;

use block::Error;

use super::WriteCache;

/// A message that was understood.
#[derive(Clone, Copy)]
enum Message {
    Flush,
    FlushOnSuspend,
    Cleaner,
    ClearStats,
    Grow,
}

impl Message {
    fn parse(words: &[String]) -> Result<Message, Error> {
        let word = match words {
            [one] => one.to_ascii_lowercase(),
            _ => String::new(),
        };
        Ok(match word.as_str() {
            "flush" => Message::Flush,
            "flush_on_suspend" => Message::FlushOnSuspend,
            "cleaner" => Message::Cleaner,
            "clear_stats" => Message::ClearStats,
            "grow" => Message::Grow,
            _ => {
                return Err(Error::invalid(format!(
                    "writecache: unknown message `{}`: flush, flush_on_suspend, cleaner, \
                     clear_stats, grow are allowed",
                    words.join(" ")
                )));
            }
        })
    }
}

impl WriteCache {
    /// As in the kernel: those that only change what a later suspend or resume does, or numbers.
    pub(super) fn takes_message_while_suspended(words: &[String]) -> bool {
        match Message::parse(words) {
            Ok(Message::FlushOnSuspend | Message::Cleaner | Message::ClearStats) => true,
            Ok(Message::Flush | Message::Grow) | Err(_) => false,
        }
    }

    pub(super) async fn take_message(self: Rc<Self>, words: Vec<String>) -> Result<String, Error> {
        match Message::parse(&words)? {
            Message::Flush => self.running()?.writeback.write_back_all().await?,
            Message::FlushOnSuspend => self.flush_on_suspend.set(true),
            Message::Cleaner => {
                self.flush_on_suspend.set(true);
                self.cleaner_by_message.set(true);
                self.retune();
            }
            Message::ClearStats => {
                if let Some(cache) = self.cache() {
                    cache.store.stats.clear();
                }
            }
            Message::Grow => return self.grow().await,
        }
        Ok(String::new())
    }
}
