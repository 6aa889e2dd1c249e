"""What a plan says of generating, as `plan.json` holds it. The engine decides by it how many answers go at once."""

from pydantic import BaseModel, ConfigDict

HELD = ("weights", "optimizer", "teacher", "sampler")
"""Parts of a training step's memory that stay while answers are generated."""
VLLM_CARD_SHARE = 0.9
"""Of a card's memory, for vLLM and for what stays of the training while answers are generated."""
VLLM_CACHE_BYTES = 1 << 30
"""Keys and values of vLLM in main memory, where there is no card. What does not fit waits."""


class _AnswerPart(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, use_attribute_docstrings=True, defer_build=True)


class AnswerBytes(_AnswerPart):
    """Memory of one answer while it is generated."""

    cached: int
    """Keys and values of a token, in all layers."""
    passing: int
    """What one layer makes of a token of the prompt, besides its keys and values."""
    joined: int
    """What one layer's attention makes of a cached token for the next one: a longer copy, one for each head."""
    chosen: int
    """The probabilities that a token is chosen from."""
    waiting: int
    """What is still there of the last choice while the next token is computed."""
    logits: int
    """The next one's logits."""
    state: int = 0
    """Layers without keys and values: what they carry along, whatever the length."""

    def at_most(self, prompt: int, longest: int) -> int:
        """At any moment."""
        return max(self.moments(prompt, longest).values())

    def moments(self, prompt: int, longest: int) -> dict[str, int]:
        """In the prompt's pass with its mask; of the last token in a layer, in the output layer and at its choice."""
        tokens = prompt + longest - 1
        kept = self.state + tokens * self.cached
        return {
            "prompt": self.state + prompt * (self.cached + self.passing) + prompt**2,
            "layer": kept + tokens * self.joined + self.waiting,
            "output": kept + self.waiting + self.logits,
            "choice": kept + self.chosen,
        }


class Generating(_AnswerPart):
    """What the answers of a step take, before it trains on them."""

    prompts: int
    """Prompts of a step."""
    at_once: int
    """Answers that a device generates together, of the longest prompts; of shorter ones it may be more."""
    step_seconds: float
    """Expected seconds of a step that pass before it trains; in `speed.step_seconds` too."""
    step_seconds_range: tuple[float, float]
    """Wide: nobody published how long many answers at once take. Their length may make it more or less still."""
    share: float
    """Of the step's seconds."""
    device_bytes: int
    """Memory of a device while it generates."""
    training_device_bytes: int
    """The same while it trains; the larger is `memory.peak_device_bytes`."""
    answer: AnswerBytes
    """Memory of one answer."""
    room_bytes: int
    """What all answers at once may take."""
    cost_per_1000_prompts: float | None = None
    """Generating and training, in the currency of `cost`."""
    cost_per_1000_prompts_range: tuple[float, float] | None = None
    """As far as `cost` may lie from what is expected."""
