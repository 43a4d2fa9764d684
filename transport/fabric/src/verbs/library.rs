//! libibverbs, found when it is first asked for.
//!
//! The program is not linked to it, so it starts on machines without RDMA. What the library's
//! header offers as inline functions goes through the table of the opened device, as there.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

use super::abi::{
    CompChannel, Context, Cq, Device, DeviceAttr, Mr, Pd, PortAttr, Qp, QpAttr, QpInitAttr,
};
use super::error::VerbsError;

/// The name under which the library is installed since its first release with this interface.
const NAME: &CStr = c"libibverbs.so.1";

/// Declares the table of functions and how it is filled, so that no name is written twice.
macro_rules! functions {
    ($($name:ident: $symbol:literal, fn($($argument:ty),*) $(-> $result:ty)?;)+) => {
        /// The library's functions. They stay valid: it is never unloaded.
        pub(super) struct Library {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)+
        }

        impl Library {
            fn fill(handle: Handle) -> Result<Self, VerbsError> {
                Ok(Self {
                    $($name: {
                        let address = handle.symbol($symbol)?;
                        // SAFETY: the library's function of this name has this signature, by
                        // its public header.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($argument),*) $(-> $result)?,
                            >(address)
                        }
                    },)+
                })
            }
        }
    };
}

functions! {
    get_device_list: c"ibv_get_device_list", fn(*mut c_int) -> *mut *mut Device;
    free_device_list: c"ibv_free_device_list", fn(*mut *mut Device);
    get_device_name: c"ibv_get_device_name", fn(*mut Device) -> *const c_char;
    open_device: c"ibv_open_device", fn(*mut Device) -> *mut Context;
    close_device: c"ibv_close_device", fn(*mut Context) -> c_int;
    query_device: c"ibv_query_device", fn(*mut Context, *mut DeviceAttr) -> c_int;
    query_port: c"ibv_query_port", fn(*mut Context, u8, *mut PortAttr) -> c_int;
    alloc_pd: c"ibv_alloc_pd", fn(*mut Context) -> *mut Pd;
    dealloc_pd: c"ibv_dealloc_pd", fn(*mut Pd) -> c_int;
    reg_mr: c"ibv_reg_mr", fn(*mut Pd, *mut c_void, usize, c_int) -> *mut Mr;
    dereg_mr: c"ibv_dereg_mr", fn(*mut Mr) -> c_int;
    create_comp_channel: c"ibv_create_comp_channel", fn(*mut Context) -> *mut CompChannel;
    destroy_comp_channel: c"ibv_destroy_comp_channel", fn(*mut CompChannel) -> c_int;
    create_cq: c"ibv_create_cq",
        fn(*mut Context, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut Cq;
    destroy_cq: c"ibv_destroy_cq", fn(*mut Cq) -> c_int;
    get_cq_event: c"ibv_get_cq_event",
        fn(*mut CompChannel, *mut *mut Cq, *mut *mut c_void) -> c_int;
    ack_cq_events: c"ibv_ack_cq_events", fn(*mut Cq, u32);
    create_qp: c"ibv_create_qp", fn(*mut Pd, *mut QpInitAttr) -> *mut Qp;
    modify_qp: c"ibv_modify_qp", fn(*mut Qp, *mut QpAttr, c_int) -> c_int;
    destroy_qp: c"ibv_destroy_qp", fn(*mut Qp) -> c_int;
}

impl Library {
    /// The library, loaded at the first call.
    pub(super) fn get() -> Result<&'static Self, VerbsError> {
        static LIBRARY: OnceLock<Result<Library, VerbsError>> = OnceLock::new();
        LIBRARY
            .get_or_init(|| Handle::open(NAME).and_then(Self::fill))
            .as_ref()
            .map_err(Clone::clone)
    }
}

/// What `dlopen` returned.
#[derive(Clone, Copy)]
struct Handle(*mut c_void);

impl Handle {
    fn open(name: &CStr) -> Result<Self, VerbsError> {
        // SAFETY: the name is a C string. What the library runs while it is loaded is its own.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            let cause = last_message();
            return Err(VerbsError::NoLibrary { cause });
        }
        Ok(Self(handle))
    }

    fn symbol(self, name: &'static CStr) -> Result<*mut c_void, VerbsError> {
        // SAFETY: the handle is open, the name is a C string. Of several versions of a name
        // the newest is found.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        if address.is_null() {
            let cause = last_message();
            return Err(VerbsError::NoLibrary { cause });
        }
        Ok(address)
    }
}

/// Why the last step failed, in the loader's words.
fn last_message() -> String {
    // SAFETY: no precondition. The text is this thread's until its next call of the loader.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "for no reason given".to_owned();
    }
    // SAFETY: not null, so a C string; it is copied before anything else is called.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_missing_library_is_named() {
        let Err(error) = Handle::open(c"libnothing-of-this-name.so.1") else {
            panic!("there is such a library");
        };
        let message = error.to_string();
        assert!(message.contains("libnothing-of-this-name"), "{message}");
    }

    #[test]
    fn symbol_missing_name_is_named() {
        let handle = Handle::open(c"libc.so.6").unwrap();
        let message = handle.symbol(c"ibv_no_such_thing").unwrap_err().to_string();
        assert!(message.contains("ibv_no_such_thing"), "{message}");
        assert!(handle.symbol(c"strlen").is_ok());
    }
}
