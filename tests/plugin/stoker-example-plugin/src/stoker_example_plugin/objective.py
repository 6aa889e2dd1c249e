"""An objective: every row counts the same, however many tokens it has. torch is imported only where it is used."""

from typing import Any


class RowMean:
    """The mean over rows of each row's mean loss."""

    trains_all = True
    pairs = reference = labels = scores = False
    figures = ("rows",)

    def weight(self, rows: int, trained_tokens: int) -> int:
        """Rows."""
        return rows

    def loss(self, model: Any, inputs: dict[str, Any], weight: Any, token_loss: Any) -> Any:
        """Of each row the mean over its trained tokens."""
        from stoker.engine.objective import Loss, answer_log_probs

        log_probs, tokens = answer_log_probs(model, inputs)
        return Loss(-(log_probs / tokens).sum() / weight, (tokens > 0).sum()[None] / weight)


ROW_MEAN = RowMean()
