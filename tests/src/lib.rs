//! What the tests share, and the guides' examples as doc tests.
//!
//! The examples are compiled and run here, so that no packaged crate refers to files outside of it.

/// The guides, one module each.
#[cfg(doctest)]
mod guides {
    #[doc = include_str!("../../README.md")]
    mod readme {}
    #[doc = include_str!("../../docs/call-other-services.md")]
    mod call_other_services {}
    #[doc = include_str!("../../docs/coming-from.md")]
    mod coming_from {}
    #[doc = include_str!("../../docs/consume-a-queue.md")]
    mod consume_a_queue {}
    #[doc = include_str!("../../docs/guarantees.md")]
    mod guarantees {}
    #[doc = include_str!("../../docs/keep-order.md")]
    mod keep_order {}
    #[doc = include_str!("../../docs/operate.md")]
    mod operate {}
    #[doc = include_str!("../../docs/process-later.md")]
    mod process_later {}
    #[doc = include_str!("../../docs/production.md")]
    mod production {}
    #[doc = include_str!("../../docs/publish.md")]
    mod publish {}
    #[doc = include_str!("../../docs/receive-webhooks.md")]
    mod receive_webhooks {}
    #[doc = include_str!("../../docs/stored.md")]
    mod stored {}
    #[doc = include_str!("../../docs/test-handlers.md")]
    mod test_handlers {}
}
