//! What prefill costs: the model of Mooncake (FAST'25, section 6 and table 1), for a model of 70
//! billion parameters on one node of eight GPUs.
//!
//! Attention and the rest of a prompt of `n` tokens take `l (a n^2 d + b n d^2)` operations.

/// Tokens of a full block in the traces that have tokens.
pub const BLOCK_TOKENS: u32 = 512;

/// Layers, `l`.
const LAYERS: f64 = 80.0;
/// Width of the model, `d`.
const WIDTH: f64 = 8192.0;
/// Operations of attention, `a`.
const ATTENTION: f64 = 4.0;
/// Operations of everything else, `b`.
const DENSE: f64 = 22.0;
/// Operations per second of a node, `G`: eight GPUs of 312 TFLOPS.
const NODE_FLOPS: f64 = 8.0 * 312e12;
/// Share of them that prefill reaches.
const UTILISATION: f64 = 0.5;

/// Seconds that the first `tokens` tokens of a prompt take to compute: what their reuse saves.
///
/// 8192 tokens take 1.14 x 10^15 operations, of 1.25 x 10^15 a second: 0.92 s.
#[must_use]
pub fn prefill_seconds(tokens: u64) -> f64 {
    #[expect(
        clippy::cast_precision_loss,
        reason = "prompts are far below 2^53 tokens"
    )]
    let n = tokens as f64;
    LAYERS * (ATTENTION * n * n * WIDTH + DENSE * n * WIDTH * WIDTH) / (NODE_FLOPS * UTILISATION)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefill_seconds_of_8192_tokens_is_as_computed_by_hand() {
        // 8192 tokens are as many as the model is wide: 80 layers of 26 d^3 operations.
        let by_hand = 80.0 * 26.0 * 8192_f64.powi(3) / (8.0 * 312e12 * 0.5);
        assert!((prefill_seconds(8192) / by_hand - 1.0).abs() < 1e-12);
        assert_eq!(prefill_seconds(0), 0.0);
    }
}
