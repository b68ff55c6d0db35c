//! `buflock_config`: options by name.

use super::words::buflock_status;
use super::{boundary, given, guarded, text, text_bytes};
use crate::config::Settings;
use std::ffi::{c_char, c_int};

/// Options for buflock_new; use it from one thread at a time.
/// Its functions: buflock_config_new, buflock_config_set, buflock_config_free.
pub struct buflock_config(pub(super) Settings);

/// A configuration with all defaults, to be freed by buflock_config_free. NULL: no memory.
#[unsafe(no_mangle)]
pub extern "C" fn buflock_config_new() -> *mut buflock_config {
    guarded(std::ptr::null_mut(), || Box::into_raw(Box::new(buflock_config(Settings::default()))))
}

/// Sets an option; the README's table says which there are and what values they take, as text.
/// BUFLOCK_CONFIG: no such option (the nearest is named), or a value it cannot have. Nothing is changed then.
///
/// # Safety
/// `option` and `value` are NULL or end in NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn buflock_config_set(
    config: Option<&mut buflock_config>,
    option: *const c_char,
    value: *const c_char,
) -> c_int {
    boundary(|| {
        let config = given(config, "config")?;
        // SAFETY: the caller's promise.
        let (option, value) = unsafe { (text(option, "option")?, text_bytes(value, "value")?) };
        config.0.set(option, value)?;
        Ok(buflock_status::BUFLOCK_OK)
    })
}

/// Frees a configuration; NULL is allowed. Locks made of it stay as they are.
#[unsafe(no_mangle)]
pub extern "C" fn buflock_config_free(config: Option<Box<buflock_config>>) {
    guarded((), || drop(config));
}
