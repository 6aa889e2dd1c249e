"""The `data` section of a run file: rows or prepared sets, how they are mixed, and how they become sequences."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag

from stoker.config import values
from stoker.config.columns import Columns
from stoker.config.kinds import Amount, FormatName, NotTruth, Percent, kind_or_list, share_or_path, text_or_list
from stoker.config.pipeline_steps import Step
from stoker.config.section import NonEmpty, Section


class Source(Section):
    """One source of rows."""

    path: NonEmpty
    """File, directory, glob, `hub:owner/name`, `modelscope:owner/name`, a set of LLaMA-Factory
    (`data/dataset_info.json#name`), or `recipe:file` shipped with Stoker."""
    name: NonEmpty | None = None
    """What a mixture and its counts call it. Default: the last part of its path, without extension."""
    share: Percent | None = None
    """Its share of the training's tokens (`60%`), for a mixture in one stage. The shares of all sources are 100 %."""
    epochs: Annotated[float, Field(gt=0, le=1000), NotTruth] | None = None
    """How often the training sees it, for a mixture by epochs: each source its own, instead of `train.epochs`."""
    weight: Annotated[float, Field(gt=0, le=100), NotTruth] = 1.0
    """How often its rows are used: 2 means twice, 0.5 a random half chosen by the seed."""
    config: str | None = None
    """The hub dataset's configuration, if it has several."""
    split: str = "train"
    """The hub dataset's split."""
    columns: Columns | None = None
    """Names of its columns, where they are not those of a known format. Default: `data.columns`."""


class PreparedSource(Section):
    """One prepared set of a mixture."""

    path: NonEmpty
    """Where the set is: a store's address, `run:NAME`, or the data folder of a run."""
    name: NonEmpty | None = None
    """What the mixture and its counts call it. Default: the last part of its path."""
    share: Percent | None = None
    """Its share of the training's tokens (`60%`), for a mixture in one stage. The shares of all sets are 100 %."""
    epochs: Annotated[float, Field(gt=0, le=1000), NotTruth] | None = None
    """How often the training sees it, for a mixture by epochs: each set its own, instead of `train.epochs`."""


class Stage(Section):
    """A part of the training with its own mixture of sources."""

    share: Percent | None = None
    """How much of the training it is (`30%` of its steps). The shares of all stages are 100 %."""
    tokens: Annotated[int, Field(ge=1, le=10**15), Amount] | None = None
    """How much it is in tokens (`5B`), for all stages or none: they then decide the number of steps."""
    mix: Annotated[dict[str, Percent], Field(min_length=1)]
    """Share of its tokens by the name of the source: `{wiki: 60%, code: 40%}`, 100 % together."""


class Data(Section):
    """The training data."""

    train: (
        Annotated[
            Annotated[NonEmpty, Tag("text")]
            | Annotated[Source, Tag("mapping")]
            | Annotated[list[Source], Field(min_length=1), Tag("list")],
            Discriminator(kind_or_list),
        ]
        | None
    ) = None
    """File, directory, glob, `hub:owner/name`, `modelscope:owner/name`, a set of LLaMA-Factory
    (`data/dataset_info.json#name`), a source, or a list of sources with weights."""
    stages: Annotated[list[Stage], Field(min_length=1)] | None = None
    """A mixture that changes during training: the stages in order, each with shares by tokens of the sources."""
    pipeline: Annotated[list[Step], Field(min_length=1)] | None = None
    """Steps of datatrove that the training data goes through first, in this order. It is then text: jsonl with `text`,
    csv, parquet, warc, or a hub dataset."""
    set: (
        Annotated[
            Annotated[NonEmpty, Tag("text")] | Annotated[list[PreparedSource], Field(min_length=1), Tag("list")],
            Discriminator(text_or_list),
        ]
        | None
    ) = None
    """A set that is prepared already, in place of `train`: a store's address (`s3://bucket/prefix`, a directory,
    `ssh://user@host/path`) where `stoker prepare --push` put it, `run:NAME`, or the data folder of a run. Or a list of
    sets to mix, each with its `share` or `epochs`."""
    stream: bool = False
    """Read the set from its store while training, through a cache, instead of fetching it first."""
    cache: Annotated[str, Field(pattern=values.SIZE_PATTERN)] = "4 GB"
    """Disk that a streamed set may take on a machine, in all; what is read ahead bridges a store that is away."""
    eval: Annotated[NonEmpty, AfterValidator(share_or_path)] | None = None
    """A share of the training rows (`2%`), or a separate file, directory, glob or hub dataset."""
    length: Annotated[int, Field(ge=8, le=10_000_000), NotTruth] = 2048
    """Longest sequence in tokens. Longer rows are truncated (text: split) and counted in the report."""
    pack: bool = True
    """Pack several documents into one sequence, without attention between them. If false, batch counts rows."""
    format: FormatName = "auto"
    """Row format. `auto` detects it from the keys and reports what it found."""
    columns: Columns | None = None
    """Names of the columns, where they are not those of a known format: `{prompt: question_text, answer: reply}`."""
    on_bad_row: Literal["stop", "skip"] = "stop"
    """What to do with an invalid row: stop and report it, or skip and count it."""
    duplicates: Literal["keep", "drop"] = "keep"
    """What to do with training rows that repeat an earlier one, or an eval row, in the same or nearly the same words:
    keep and report them, or leave them out."""
    rows: Annotated[int, Field(ge=1, le=10**12), Amount] | None = None
    """Declared number of rows (`20000`, `20k`, `2万`), for planning before the data is available."""
    tokens: Annotated[int, Field(ge=1, le=10**15), Amount] | None = None
    """Declared number of tokens (`5000000`, `5M`, `500万`), for planning before the data is available. Without it a
    plan counts the rows of files on this machine and estimates their tokens."""
