// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Log: one event, one line, key=value, on standard error. `MILLPOND_LOG` sets the level.
use tracing::Level;

/// Starts logging at `default` and above, or at what `MILLPOND_LOG` says.
pub(crate) fn start(default: Level) {
    let level = std::env::var("MILLPOND_LOG").ok().and_then(|l| l.parse().ok()).unwrap_or(default);
    let subscriber = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_target(false)
        .with_max_level(level)
        .finish();
    // Fails only when it was started before; then that stays.
    let _ = tracing::subscriber::set_global_default(subscriber);
}
