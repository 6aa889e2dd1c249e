"""The sizes by which AdamW over weights in bf16 works (`engine/rounded`): they decide bits, and so memory."""

FULL_STATE_BELOW = 4096
"""Elements up to which an 8-bit optimizer keeps fp32 states."""
STATE_BLOCK = 256
"""Elements of 8-bit states that share a scale."""
ROUNDED_AT_ONCE = 1 << 22
"""Elements of a weight that are updated at once."""
