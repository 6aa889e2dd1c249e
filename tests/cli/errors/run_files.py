"""Broken run files, each with everything that must be said about it."""

from errors.expected import Expected, err

MODEL = "model: Qwen/Qwen2.5-0.5B\n"
DATA = "data: {train: a.jsonl, rows: 1000, tokens: 100000}\n"
BOTH = MODEL + DATA
SHAPE = "model: {shape: llama, layers: 2, width: 64, heads: 2}\n"
TRAINED = "tokenizer: {train: bpe, vocab: 500}\n"

Table = dict[str, tuple[str, list[Expected]]]

SYNTAX: Table = {
    "a tab for indentation": (MODEL + "data:\n\ttrain: a\n", [err("STK102", "run.yaml:3", "tab", "spaces")]),
    "two colons in a line": ("model: a: b\n" + DATA, [err("STK102", "run.yaml:1", "second `: `")]),
    "a quote left open": ('model: "abc\n' + DATA, [err("STK102", "run.yaml:1", "quote is never closed")]),
    "a brace left open": (
        MODEL + "data: {train: a\ntrain: {epochs: 3}\n",
        [err("STK102", "run.yaml:2", "never closed")],
    ),
    "a comma forgotten": (MODEL + "data: {train: a eval: 2%}\n", [err("STK102", "run.yaml:2", "comma is missing")]),
    "a crooked indentation": (MODEL + "data:\n  train: a\n eval: 2%\n", [err("STK102", "run.yaml:4", "indentation")]),
    "no space after the colon": ("model:Qwen\n" + DATA, [err("STK102", "run.yaml:1", "space is missing")]),
    "no space anywhere": ("model:Qwen\ndata:a\n", [err("STK102", "run.yaml:1", "space is missing")]),
    "no space below a key": (BOTH + "train:\n  epochs:3\n", [err("STK102", "run.yaml:3: train", "space is missing")]),
    "a full-width colon": ("model：Qwen\n" + DATA, [err("STK102", "run.yaml:1", "write `:`", "input method")]),
    "a full-width colon below": (
        MODEL + "data:\n  train：a\n",
        [err("STK102", "run.yaml:2: data", "full-width", "write `:`")],
    ),
    "a full-width comma": (MODEL + "data: {train: a， eval: 2%}\n", [err("STK102", "run.yaml:2", "write `,`")]),
    "full-width quotes": ("model: “Qwen”\n" + DATA, [err("STK102", "run.yaml:1: model", 'write `"`')]),
    "a full-width space": (MODEL + "data:\n　 train: a\n", [err("STK102", "run.yaml:3", "full-width or no-break")]),
    "a windows path in quotes": (MODEL + 'data: {train: "C:\\data"}\n', [err("STK102", "run.yaml:2", "backslash")]),
    "a glob without quotes": (MODEL + "data: {train: *.jsonl}\n", [err("STK102", "run.yaml:2", "in quotes")]),
    "a glob that reads as an alias": (MODEL + "data: {train: *data}\n", [err("STK114", "run.yaml:2", "in quotes")]),
    "a percent sign first": (BOTH + "train: {warmup: %3}\n", [err("STK102", "run.yaml:3", "`%`", "in quotes")]),
    "text after a quote": ("model: 'it's'\n" + DATA, [err("STK102", "run.yaml:1", "follows the closing quote")]),
    "a line that is no key": (BOTH + "train\nsave: {keep: 3}\n", [err("STK102", "run.yaml:3", "not `key: value`")]),
    "a list on the key's line": (MODEL + "data:\n  train: - a\n", [err("STK102", "run.yaml:3", "`[a, b]`")]),
    "two documents": (BOTH + "---\n" + BOTH, [err("STK102", "run.yaml:3", "second document")]),
    "data instead of a run file": ('{"text": "a"}\n{"text": "b"}\n', [err("STK102", "run.yaml:2", "second document")]),
    "a control character": (MODEL + "data: {train: a\x07}\n", [err("STK102", "run.yaml:2", "U+0007")]),
    "nesting without end": ("model: " + "[" * 5000, [err("STK102", "run.yaml:1", "too deep")]),
    "a number without end": (
        BOTH + "train: {epochs: " + "9" * 5000 + "}\n",
        [err("STK102", "run.yaml:3: train.epochs", "too large")],
    ),
    "a list as a key": ("? [a, b]\n: 3\n" + BOTH, [err("STK102", "run.yaml:1", "must be a string")]),
    "an anchor and an alias": (
        "model: &a m\ntokenizer: *a\n" + DATA,
        [err("STK114", "run.yaml:1"), err("STK114", "run.yaml:2")],
    ),
    "a tag": ("model: !!python/name:os.system m\n" + DATA, [err("STK114", "run.yaml:1")]),
    "a tag on a mapping": (MODEL + "data: !x {train: a}\n", [err("STK114", "run.yaml:2")]),
    "a key twice": (BOTH + "train: {epochs: 1, epochs: 2}\n", [err("STK103", "run.yaml:3: train.epochs", "line 3")]),
    "a section twice": (BOTH + "\nmodel: x\n", [err("STK103", "run.yaml:4: model", "line 1")]),
    "a list at the top": ("- model: m\n- data: x\n", [err("STK118", "run.yaml:1", "`model:`")]),
    "a sentence": ("train a model please\n", [err("STK118", "run.yaml:1")]),
    "nothing": (
        "",
        [err("STK105", "run.yaml:1: model", "Qwen/"), err("STK105", "run.yaml:1: data", "{train: data/train.jsonl}")],
    ),
    "comments only": ("# later\n", [err("STK105", "run.yaml:1: model"), err("STK105", "run.yaml:1: data")]),
}

KEYS: Table = {
    "a typo at the top": (BOTH + "trian: {epochs: 1}\n", [err("STK104", "run.yaml:3: trian", "`train`")]),
    "a typo for a required key": ("modle: m\n" + DATA, [err("STK104", "run.yaml:1: modle", "`model`")]),
    "a typo in data": (
        MODEL + "data: {train: a, lenght: 9}\n",
        [err("STK104", "run.yaml:2: data.lenght", "data.length")],
    ),
    "a typo in train": (BOTH + "train: {epoch: 1}\n", [err("STK104", "run.yaml:3: train.epoch", "`train.epochs`")]),
    "a typo in tune": (BOTH + "tune: {method: lora, rnak: 8}\n", [err("STK104", "run.yaml:3: tune.rnak", "tune.rank")]),
    "a typo in save": (BOTH + "save: {kepe: 3}\n", [err("STK104", "run.yaml:3: save.kepe", "`save.keep`")]),
    "a typo in where": (BOTH + "where: {gpu: 1}\n", [err("STK104", "run.yaml:3: where.gpu", "`where.gpus`")]),
    "a typo in budget": (BOTH + "budget: {tiem: 1h}\n", [err("STK104", "run.yaml:3: budget.tiem", "`budget.time`")]),
    "a typo in native": (
        BOTH + "native: {trianer: {}}\n",
        [err("STK104", "run.yaml:3: native.trianer", "native.trainer")],
    ),
    "a typo in a shape": (
        SHAPE.replace("layers", "layer") + TRAINED + DATA,
        [err("STK104", "run.yaml:1: model.layer", "model.layers")],
    ),
    "a typo in a tokenizer": (
        SHAPE + TRAINED.replace("vocab", "vocabs") + DATA,
        [err("STK104", "run.yaml:2: tokenizer.vocabs", "tokenizer.vocab")],
    ),
    "a typo in a list of sources": (
        MODEL + "data:\n  train:\n    - path: a\n    - path: b\n      wieght: 2\n",
        [err("STK104", "run.yaml:6: data.train[1].wieght", "data.train[1].weight")],
    ),
    "a key of another section": (
        BOTH + "learning_rate: 1e-4\n",
        [err("STK104", "run.yaml:3: learning_rate", "`train.learning_rate`")],
    ),
    "an upstream name that a word owns": (
        BOTH + "train: {num_train_epochs: 1}\n",
        [err("STK104", "run.yaml:3: train.num_train_epochs", "`train.epochs`")],
    ),
    "an upstream name that is native": (
        BOTH + "train: {neftune_noise_alpha: 5}\n",
        [err("STK104", "run.yaml:3: train.neftune_noise_alpha", "`native.trainer.neftune_noise_alpha`")],
    ),
    "names of other tools": (
        "model: m\ndataset: alpaca\nlora_rank: 8\ncutoff_len: 1024\nlr: 1e-4\n",
        [
            err("STK104", "run.yaml:2: dataset", "`data.train`"),
            err("STK104", "run.yaml:3: lora_rank", "`tune.rank`"),
            err("STK104", "run.yaml:4: cutoff_len", "`data.length`"),
            err("STK104", "run.yaml:5: lr", "`train.learning_rate`"),
        ],
    ),
    "another trainer's file": (
        "stage: sft\nmodel_name_or_path: m\ndataset: alpaca\n",
        [err("STK189", "run.yaml:2: model_name_or_path", "LLaMA-Factory", "`stoker init --from run.yaml run.yaml`")],
    ),
    "yet another trainer's file": (
        "base_model: m\ndatasets: [{path: a}]\n",
        [err("STK189", "run.yaml:1: base_model", "axolotl")],
    ),
    "an adapter at the top": (BOTH + "lora: {rank: 8}\n", [err("STK104", "run.yaml:3: lora", "`tune`")]),
    "a number as a key": (BOTH + "5: 3\n", [err("STK104", "run.yaml:3: 5", "`stoker schema` lists all keys")]),
    "an adapter's key in full tuning": (
        BOTH + "tune: {method: full, rank: 8}\n",
        [err("STK137", "run.yaml:3: tune.rank", "`lora`", "`full`")],
    ),
}

VALUES: Table = {
    "no model": (DATA, [err("STK105", "run.yaml:1: model", "Qwen/")]),
    "no data": (MODEL, [err("STK105", "run.yaml:1: data", "data/train.jsonl")]),
    "neither rows nor a set": (MODEL + "data: {length: 64}\n", [err("STK167", "run.yaml:2: data", "data/train.jsonl")]),
    "a stream without a set": (
        MODEL + "data: {train: a.jsonl, stream: true}\n",
        [err("STK168", "run.yaml:2: data.stream", "--push")],
    ),
    "a stream of several sets": (
        MODEL + "data: {set: [{path: a, share: 50%}, {path: b, share: 50%}], stream: true}\n",
        [err("STK169", "run.yaml:2: data.stream", "remove `data.stream`")],
    ),
    "several sets and no shares": (
        MODEL + "data: {set: [{path: a}, {path: b}]}\n",
        [err("STK170", "run.yaml:2: data.set", "`share: 60%`")],
    ),
    "columns of two layouts": (
        MODEL + "data: {train: a.jsonl, columns: {text: body, prompt: question}}\n",
        [err("STK171", "run.yaml:2: data.columns", "`prompt` and `answer`", "`text`, `prompt`")],
    ),
    "a question without its answer, in a source": (
        MODEL + "data: {train: [{path: a.jsonl, columns: {prompt: question}}]}\n",
        [err("STK171", "run.yaml:2: data.train[0].columns", "`answer`")],
    ),
    "columns and a format": (
        MODEL + "data: {train: a.jsonl, format: alpaca, columns: {text: body}}\n",
        [err("STK163", "run.yaml:2: data.columns", "`data.format`")],
    ),
    "a set of a list in a pipeline": (
        MODEL + "data: {train: 'dataset_info.json#a', pipeline: [{step: MinhashDedup}]}\n",
        [err("STK172", "run.yaml:2: data.pipeline", "dataset_info.json#a")],
    ),
    "options of another objective": (
        MODEL + "data: {train: a.jsonl}\ntrain: {dpo: {beta: 0.2}}\n",
        [err("STK190", "run.yaml:3: train.dpo", "`train.objective: dpo`")],
    ),
    "pairs that are packed": (
        MODEL + "data: {train: a.jsonl}\ntrain: {objective: dpo}\n",
        [err("STK191", "run.yaml:2: data.pack", "`data.pack: false`")],
    ),
    "what does not go with pairs": (
        MODEL
        + "data: {train: a.jsonl, pack: false}\ntrain: {objective: simpo}\nwhere: {strategy: zero2, loss: fused}\n",
        [err("STK192", "run.yaml:4: where.loss", "simpo"), err("STK192", "run.yaml:4: where.strategy", "simpo")],
    ),
    "answers compared with dropout": (
        MODEL + "data: {train: a.jsonl, pack: false}\ntrain: {objective: dpo}\ntune: {method: lora, dropout: 0.05}\n",
        [err("STK192", "run.yaml:4: tune.dropout", "dpo")],
    ),
    "labelled answers that are packed, with options of pairs": (
        MODEL + "data: {train: a.jsonl}\ntrain: {objective: kto, orpo: {beta: 0.2}}\n",
        [
            err("STK191", "run.yaml:2: data.pack", "kto"),
            err("STK190", "run.yaml:3: train.orpo", "`train.objective: orpo`"),
        ],
    ),
    "what does not go with one output": (
        MODEL + "data: {train: a.jsonl, pack: false}\ntrain: {objective: reward}\ntune: {method: qlora}\n"
        "where: {kernels: liger}\n",
        [err("STK192", "run.yaml:4: tune.method", "reward"), err("STK192", "run.yaml:5: where.kernels", "reward")],
    ),
    "answers without a reward": (
        MODEL + "data: {train: a.jsonl, pack: false}\ntrain: {objective: grpo}\n",
        [err("STK450", "run.yaml:3: train.grpo", "`train.grpo.rewards`")],
    ),
    "what does not go together with generated answers": (
        MODEL
        + "data: {train: a.jsonl, length: 256, pack: false}\ntrain: {objective: grpo, batch: 20, spike: 3, grpo: "
        + "{beta: 0.1, rewards: [{exact: {column: answer}}]}}\n",
        [
            err("STK451", "run.yaml:3: train.batch", "16", "24"),
            err("STK452", "run.yaml:3: train.grpo.max_new_tokens", "`data.length`"),
            err("STK453", "run.yaml:3: train.grpo.beta", "`tune.method: lora`"),
            err("STK192", "run.yaml:3: train.spike", "grpo"),
        ],
    ),
    "a distillation that nobody teaches, without room for prompts": (
        MODEL + "data: {train: a.jsonl, length: 256, pack: false}\ntrain: {objective: distill}\n",
        [
            err("STK470", "run.yaml:3: train.distill", "`train.distill.teacher`"),
            err("STK452", "run.yaml:3: train.distill.max_new_tokens", "`train.distill.max_new_tokens`"),
        ],
    ),
    "shares that are not all": (
        MODEL + "data: {train: [{path: a.txt, share: 50%}, {path: b.txt, share: 40%}]}\n",
        [err("STK160", "run.yaml:2: data.train", "90 %", "50% + 40%")],
    ),
    "a mixture of a source that is not there": (
        MODEL + "data: {train: [{path: wiki.txt}, {path: b.txt}], stages: [{mix: {wikki: 100%}}]}\n",
        [err("STK161", "run.yaml:2: data.stages[0].mix.wikki", "closest: `wiki`")],
    ),
    "two sources of one name": (
        MODEL + "data: {train: [{path: a/x.txt, share: 50%}, {path: b/x.txt, share: 50%}]}\n",
        [err("STK162", "run.yaml:2: data.train[1].name", "`x`")],
    ),
    "a share and epochs": (
        MODEL + "data: {train: [{path: a.txt, share: 50%, epochs: 2}, {path: b.txt, share: 50%}]}\n",
        [
            err("STK163", "run.yaml:2: data.train[0].epochs", "data.train.share"),
            err("STK164", "run.yaml:2: data.train[1]", "`epochs` is missing"),
        ],
    ),
    "an option datatrove does not have": (
        MODEL + "data: {train: a.jsonl, pipeline: [{step: MinhashDedup, options: {buckets: 3}}]}\n",
        [err("STK165", "run.yaml:2: data.pipeline[0].options.buckets", "num_buckets")],
    ),
    "an option that stages decide": (
        MODEL + "data: {train: a.jsonl, pipeline: [{step: MinhashDedup}]}\nnative: {datatrove: {tasks: 3}}\n",
        [err("STK166", "run.yaml:3: native.datatrove.tasks", "data.pipeline")],
    ),
    "a model left empty": ("model:\n" + DATA, [err("STK120", "run.yaml:1: model")]),
    "a section left empty": (BOTH + "train:\n", [err("STK120", "run.yaml:3: train", "remove the key")]),
    "a value left empty": (BOTH + "train: {epochs: }\n", [err("STK120", "run.yaml:3: train.epochs")]),
    "a model that is a number": ("model: 7\n" + DATA, [err("STK106", "run.yaml:1: model", "found `7`", "Qwen/")]),
    "a model that is a list": ("model: [a]\n" + DATA, [err("STK106", "run.yaml:1: model", "expected text")]),
    "a model's name as a mapping": (
        "model: {name: Qwen}\n" + DATA,
        [err("STK105", "run.yaml:1: model.shape", "`model: Qwen/")],
    ),
    "a shape without its sizes": (
        "model:\n  shape: llama\n  layers: 2\n" + TRAINED + DATA,
        [err("STK105", "run.yaml:1: model.width", "`512`"), err("STK105", "run.yaml:1: model.heads", "`8`")],
    ),
    "a shape nobody has": (
        SHAPE.replace("llama", "bert") + TRAINED + DATA,
        [err("STK108", "run.yaml:1: model.shape", "`bert`", "`llama`, `qwen2`")],
    ),
    "a tokenizer that is a list": (
        "model: m\ntokenizer: [a]\n" + DATA,
        [err("STK106", "run.yaml:2: tokenizer", "bpe")],
    ),
    "a tokenizer's algorithm": (
        SHAPE + TRAINED.replace("bpe", "wordpiece") + DATA,
        [err("STK108", "run.yaml:2: tokenizer.train", "`bpe`")],
    ),
    "a vocabulary too small": (
        SHAPE + TRAINED.replace("500", "5") + DATA,
        [err("STK107", "run.yaml:2: tokenizer.vocab", ">= 257")],
    ),
    "data as text": (MODEL + "data: a.jsonl\n", [err("STK106", "run.yaml:2: data", "{train: data/train.jsonl}")]),
    "data as a number": (MODEL + "data: {train: 5}\n", [err("STK106", "run.yaml:2: data.train", "data/train.jsonl")]),
    "sources as plain text": (
        MODEL + "data:\n  train:\n    - a.jsonl\n    - b.jsonl\n",
        [err("STK106", "run.yaml:4: data.train[0]", "{path: "), err("STK106", "run.yaml:5: data.train[1]", "{path: ")],
    ),
    "an empty list of sources": (MODEL + "data: {train: []}\n", [err("STK120", "run.yaml:2: data.train")]),
    "a source without a path": (MODEL + "data: {train: {weight: 2}}\n", [err("STK105", "run.yaml:2: data.train.path")]),
    "a negative weight": (
        MODEL + "data: {train: [{path: a, weight: -1}]}\n",
        [err("STK107", "run.yaml:2: data.train[0].weight", "> 0")],
    ),
    "an eval share as a fraction": (
        MODEL + "data: {train: a, eval: 0.02}\n",
        [err("STK109", "run.yaml:2: data.eval", "`2%`")],
    ),
    "an eval share in words": (
        MODEL + "data: {train: a, eval: two%}\n",
        [err("STK109", "run.yaml:2: data.eval", "`2%`")],
    ),
    "a full-width percent sign": (
        MODEL + "data: {train: a, eval: 2％}\n",
        [err("STK155", "run.yaml:2: data.eval", "type `2%`")],
    ),
    "full-width digits": (
        MODEL + "data: {train: a, tokens: ２k}\ntrain: {epochs: ３, batch: ０, learning_rate: １e-4}\n",
        [
            err("STK155", "run.yaml:2: data.tokens", "type `2k`"),
            err("STK155", "run.yaml:3: train.epochs", "type `3`"),
            err("STK106", "run.yaml:3: train.batch", "found `０`"),
            err("STK155", "run.yaml:3: train.learning_rate", "type `1e-4`"),
        ],
    ),
    "a name in another script": ("name: übung\n" + BOTH, [err("STK156", "run.yaml:1: name", "letters a to z")]),
    "an eval share beyond all": (
        MODEL + "data: {train: a, eval: 200%}\n",
        [err("STK107", "run.yaml:2: data.eval", "<= 100")],
    ),
    "a length in thousands": (
        MODEL + "data: {train: a, length: 2k}\n",
        [err("STK106", "run.yaml:2: data.length", "an integer", "`2048`")],
    ),
    "a length of nothing": (
        MODEL + "data: {train: a, length: 0}\n",
        [err("STK107", "run.yaml:2: data.length", ">= 8")],
    ),
    "a truth that is none": (
        MODEL + "data: {train: a, pack: maybe}\n",
        [err("STK106", "run.yaml:2: data.pack", "true or false")],
    ),
    "a layout nobody has": (
        MODEL + "data: {train: a, format: chatml}\n",
        [err("STK108", "run.yaml:2: data.format", "`messages`")],
    ),
    "rows in words": (
        MODEL + "data: {train: a, rows: many}\n",
        [err("STK109", "run.yaml:2: data.rows", "`many`")],
    ),
    "half an epoch": (BOTH + "train: {epochs: 1.5}\n", [err("STK106", "run.yaml:3: train.epochs", "an integer")]),
    "no epoch": (BOTH + "train: {epochs: 0}\n", [err("STK107", "run.yaml:3: train.epochs", ">= 1")]),
    "a true epoch": (BOTH + "train: {epochs: true}\n", [err("STK106", "run.yaml:3: train.epochs", "`true`")]),
    "a comment without a space": (
        BOTH + "train: {epochs: 3#x}\n",
        [err("STK106", "run.yaml:3: train.epochs", "`3#x`")],
    ),
    "a batch left to Stoker": (BOTH + "train: {batch: auto}\n", [err("STK106", "run.yaml:3: train.batch", "`16`")]),
    "a learning rate of nothing": (
        BOTH + "train: {learning_rate: 0}\n",
        [err("STK107", "run.yaml:3: train.learning_rate", "> 0")],
    ),
    "a learning rate without its exponent": (
        BOTH + "train: {learning_rate: 2}\n",
        [err("STK107", "run.yaml:3: train.learning_rate", "`2`", "<= 1")],
    ),
    "a learning rate as a sum": (
        BOTH + "train: {learning_rate: 2*10^-4}\n",
        [err("STK106", "run.yaml:3: train.learning_rate", "a number")],
    ),
    "a learning rate that is no number": (
        BOTH + "train: {learning_rate: .nan}\n",
        [err("STK106", "run.yaml:3: train.learning_rate")],
    ),
    "a schedule nobody has": (
        BOTH + "train: {schedule: cos}\n",
        [err("STK108", "run.yaml:3: train.schedule", "`cosine`")],
    ),
    "an objective of later": (
        BOTH + "train: {objective: ppo}\n",
        [err("STK108", "run.yaml:3: train.objective", "`sft`")],
    ),
    "an optimizer nobody has": (
        BOTH + "train: {optimizer: adam}\n",
        [err("STK108", "run.yaml:3: train.optimizer", "closest: `adamw`; choose")],
    ),
    "a warm-up as a fraction": (BOTH + "train: {warmup: 0.03}\n", [err("STK109", "run.yaml:3: train.warmup", "`3%`")]),
    "a warm-up beyond the end": (
        BOTH + "train: {warmup: 150%}\n",
        [err("STK107", "run.yaml:3: train.warmup", "<= 100")],
    ),
    "a seed too large": (
        BOTH + "train: {seed: 4294967296}\n",
        [err("STK107", "run.yaml:3: train.seed", "< 4294967296")],
    ),
    "an eval interval without a unit": (
        BOTH + "train: {eval_every: 200}\n",
        [err("STK109", "run.yaml:3: train.eval_every", "`200 steps`")],
    ),
    "an eval interval of nothing": (
        BOTH + "train: {eval_every: 0 steps}\n",
        [err("STK107", "run.yaml:3: train.eval_every", "> 0")],
    ),
    "a save interval without a unit": (
        BOTH + "save: {every: 500}\n",
        [err("STK109", "run.yaml:3: save.every", "`500 steps`")],
    ),
    "a save interval in minutes": (BOTH + "save: {every: 10min}\n", [err("STK109", "run.yaml:3: save.every", "`10m`")]),
    "a save interval of nothing": (BOTH + "save: {every: 0m}\n", [err("STK107", "run.yaml:3: save.every", "> 0")]),
    "one checkpoint kept": (BOTH + "save: {keep: 1}\n", [err("STK107", "run.yaml:3: save.keep", ">= 2")]),
    "the method as text": (BOTH + "tune: lora\n", [err("STK106", "run.yaml:3: tune", "{method: lora, rank: 16}")]),
    "no method": (BOTH + "tune: {rank: 16}\n", [err("STK105", "run.yaml:3: tune.method", "`lora`")]),
    "a method in capitals": (
        BOTH + "tune:\n  method: LoRA\n",
        [err("STK108", "run.yaml:4: tune.method", "`full`, `lora`, `qlora`")],
    ),
    "one target as text": (
        BOTH + "tune: {method: lora, targets: q_proj}\n",
        [err("STK109", "run.yaml:3: tune.targets", "`[q_proj, v_proj]`")],
    ),
    "an adapter without rank": (
        BOTH + "tune: {method: lora, rank: 0}\n",
        [err("STK107", "run.yaml:3: tune.rank", ">= 1")],
    ),
    "a place nobody serves": (BOTH + "where: {place: autodl}\n", [err("STK108", "run.yaml:3: where.place", "`ssh`")]),
    "an end nobody knows": (
        BOTH + "where: {after: destroy}\n",
        [err("STK108", "run.yaml:3: where.after", "`release`")],
    ),
    "spot in words": (BOTH + "where: {spot: maybe}\n", [err("STK106", "run.yaml:3: where.spot", "`false`")]),
    "gpus in words": (BOTH + "where: {gpus: two}\n", [err("STK109", "run.yaml:3: where.gpus", "`0,2`")]),
    "gpus as a list": (BOTH + "where: {gpus: [0, 1]}\n", [err("STK109", "run.yaml:3: where.gpus", "`0,2`")]),
    "a precision for serving": (
        BOTH + "where: {precision: int8}\n",
        [err("STK108", "run.yaml:3: where.precision", "`bf16`")],
    ),
    "recomputing sometimes": (
        BOTH + "where: {gradient_checkpointing: often}\n",
        [err("STK109", "run.yaml:3: where.gradient_checkpointing", "`auto`")],
    ),
    "money without a currency": (
        BOTH + "budget: {money: 50}\n",
        [err("STK109", "run.yaml:3: budget.money", "`50 CNY`")],
    ),
    "a price without an hour": (
        BOTH + "where: {price: 2.5 CNY}\n",
        [err("STK109", "run.yaml:3: where.price", "`2.5 CNY/h`")],
    ),
    "money with a sign": (BOTH + "budget: {money: ¥50}\n", [err("STK109", "run.yaml:3: budget.money", "`50 CNY`")]),
    "time in words": (BOTH + "budget: {time: 12 hours}\n", [err("STK109", "run.yaml:3: budget.time", "`12h`")]),
    "a name with a slash": ("name: ../x\n" + BOTH, [err("STK156", "run.yaml:1: name", "`my-run_1`")]),
    "a section as a list": (
        BOTH + "train:\n  - epochs: 3\n",
        [err("STK106", "run.yaml:3: train", "{epochs: 3, batch: 16}")],
    ),
}

NATIVE: Table = {
    "a native block as a number": (
        BOTH + "native: {trainer: 5}\n",
        [err("STK106", "run.yaml:3: native.trainer", "{neftune_noise_alpha: 5}")],
    ),
    "a native option that a word owns": (
        BOTH + "native:\n  trainer:\n    learning_rate: 1e-4\n",
        [err("STK110", "run.yaml:5: native.trainer.learning_rate", "`train.learning_rate`")],
    ),
    "a native option that is misspelt": (
        BOTH + "native: {trainer: {neftune_alpha: 5}}\n",
        [err("STK111", "run.yaml:3: native.trainer.neftune_alpha", "`neftune_noise_alpha`")],
    ),
    "a native option that the plan decides": (
        BOTH + "native: {trainer: {remove_unused_columns: true}}\n",
        [err("STK112", "run.yaml:3: native.trainer.remove_unused_columns", "stoker plan")],
    ),
    "code from a hub": (
        BOTH + "native: {model: {trust_remote_code: true}}\n",
        [err("STK112", "run.yaml:3: native.model.trust_remote_code")],
    ),
    "weights that execute": (
        BOTH + "native: {model: {use_safetensors: false}}\n",
        [err("STK112", "run.yaml:3: native.model.use_safetensors")],
    ),
    "a server that listens to everybody": (
        BOTH + "native: {vllm: {host: 0.0.0.0}}\n",
        [err("STK122", "run.yaml:3: native.vllm.host", "stoker serve")],
    ),
    "an option of another schedule": (
        BOTH + "train: {schedule: linear}\nnative: {trainer: {lr_scheduler_kwargs: {num_cycles: 2}}}\n",
        [err("STK111", "run.yaml:4: native.trainer.lr_scheduler_kwargs.num_cycles")],
    ),
    "an adapter that is set up from the data": (
        BOTH + "tune: {method: lora}\nnative: {lora: {init_lora_weights: eva}}\n",
        [err("STK144", "run.yaml:4: native.lora.init_lora_weights", "use_dora")],
    ),
    "an adapter with state of its own": (
        BOTH + "tune: {method: lora}\nnative: {lora: {monteclora_config: {}}}\n",
        [err("STK145", "run.yaml:4: native.lora.monteclora_config", "use_dora")],
    ),
    "an adapter that changes its base": (
        BOTH + "tune: {method: lora}\nnative: {lora: {init_lora_weights: pissa}}\n",
        [err("STK146", "run.yaml:4: native.lora.init_lora_weights", "orthogonal")],
    ),
    "a queue's notice": (
        BOTH + "native: {slurm: {signal: 'B:USR1@60'}}\n",
        [err("STK138", "run.yaml:3: native.slurm.signal", "slurm/job.sh")],
    ),
    "a kernel's own name": (
        BOTH + "native: {kaggle: {id: me/mine}}\n",
        [err("STK139", "run.yaml:3: native.kaggle.id")],
    ),
    "a queue's time limit": (
        BOTH + "native: {slurm: {time: 60}}\n",
        [err("STK110", "run.yaml:3: native.slurm.time", "`where.session`")],
    ),
    "a session without a unit": (
        BOTH + "where: {session: 8}\n",
        [err("STK109", "run.yaml:3: where.session", "`8h`")],
    ),
    "a shape's size under its upstream name": (
        SHAPE + TRAINED + DATA + "native: {model: {num_hidden_layers: 3}}\n",
        [err("STK110", "run.yaml:4: native.model.num_hidden_layers", "`model.layers`")],
    ),
    "a shape's option that is misspelt": (
        SHAPE + TRAINED + DATA + "native: {model: {rms_norm_epsilon: 1e-5}}\n",
        [err("STK111", "run.yaml:4: native.model.rms_norm_epsilon", "`rms_norm_eps`")],
    ),
    "adapter options without an adapter": (
        BOTH + "native: {lora: {use_rslora: true}}\n",
        [err("STK137", "run.yaml:3: native.lora", "`tune.method` is `full`")],
    ),
    "4-bit options without 4 bits": (
        BOTH + "tune: {method: lora}\nnative: {quantization: {bnb_4bit_quant_type: nf4}}\n",
        [err("STK137", "run.yaml:4: native.quantization", "`qlora`")],
    ),
    "a token": (
        BOTH + "save: {store: 's3://key:hunter22@bucket'}\n",
        [err("STK115", "run.yaml:3: save.store", "environment")],
    ),
    "a token in a comment": (BOTH + "# HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz\n", [err("STK115", "run.yaml:3")]),
}

CONFLICTS: Table = {
    "an adapter on nothing": (
        SHAPE + TRAINED + DATA + "tune: {method: lora}\n",
        [err("STK130", "run.yaml:4: tune.method", "`lora`")],
    ),
    "a shape without a tokenizer": (
        SHAPE + DATA,
        [err("STK131", "run.yaml:1: tokenizer", "{train: bpe, vocab: 32000}")],
    ),
    "heads that do not divide": (
        SHAPE.replace("heads: 2", "heads: 3") + TRAINED + DATA,
        [err("STK132", "run.yaml:1: model.heads", "64", "3")],
    ),
    "key/value heads that do not divide": (
        SHAPE.replace("heads: 2", "heads: 4, kv_heads: 3") + TRAINED + DATA,
        [err("STK133", "run.yaml:1: model.kv_heads")],
    ),
    "a new tokenizer for a trained model": (MODEL + TRAINED + DATA, [err("STK134", "run.yaml:2: tokenizer", "auto")]),
    "the best of nothing": (
        BOTH + "save: {best: eval_loss}\n",
        [err("STK135", "run.yaml:3: save.best", "`data.eval`")],
    ),
    "the best of what is never measured": (
        MODEL + "data: {train: a, eval: 2%}\nsave: {best: eval_loss}\ntrain: {eval_every: never}\n",
        [err("STK135", "run.yaml:4: train.eval_every")],
    ),
    "one host and several": (
        BOTH + "where: {place: ssh, host: a, hosts: [a, b]}\n",
        [err("STK140", "run.yaml:3: where.hosts", "where.host")],
    ),
    "one of several hosts": (
        BOTH + "where: {place: ssh, hosts: [a]}\n",
        [err("STK140", "run.yaml:3: where.hosts", "host: ")],
    ),
    "a host twice": (BOTH + "where: {place: ssh, hosts: [a, b, a]}\n", [err("STK140", "run.yaml:3: where.hosts")]),
    "a host and no place": (
        BOTH + "where: {host: box}\n",
        [err("STK141", "run.yaml:3: where.host", "place: ssh", "box")],
    ),
    "a model with the prefix of data": (
        "model: modelscope:Qwen/Qwen2.5-0.5B\n" + DATA,
        [err("STK154", "run.yaml:1: model", "`modelscope:`", "modelscope download --model Qwen/Qwen2.5-0.5B")],
    ),
    "money in yen or yuan": (
        BOTH + "budget: {money: 50¥}\n",
        [err("STK109", "run.yaml:3: budget.money", "50 CNY")],
    ),
    "ssh to nowhere": (BOTH + "where: {place: ssh}\n", [err("STK136", "run.yaml:3: where.host", "stoker hosts")]),
}

SEVERAL: Table = {
    "many mistakes": (
        "modle: m\ndata:\n  train: a\n  lenght: 3\n  pack: maybe\ntrain:\n  epochs: 0\n  batch: x\n"
        "  schedule: cos\nsave:\n  every: 5\nnative:\n  trainer: {learning_rate: 1, nonsense_option: 2}\n"
        "# key sk-abcdefghijklmnopqrstuvwxyz\n",
        [
            err("STK104", "run.yaml:1: modle", "`model`"),
            err("STK104", "run.yaml:4: data.lenght", "`data.length`"),
            err("STK106", "run.yaml:5: data.pack"),
            err("STK107", "run.yaml:7: train.epochs"),
            err("STK106", "run.yaml:8: train.batch"),
            err("STK108", "run.yaml:9: train.schedule"),
            err("STK109", "run.yaml:11: save.every"),
            err("STK110", "run.yaml:13: native.trainer.learning_rate"),
            err("STK111", "run.yaml:13: native.trainer.nonsense_option"),
            err("STK115", "run.yaml:14"),
        ],
    ),
    "several conflicts": (
        SHAPE.replace("heads: 2", "heads: 3") + DATA + "tune: {method: qlora}\nwhere: {place: ssh}\n",
        [
            err("STK131", "run.yaml:1: tokenizer"),
            err("STK132", "run.yaml:1: model.heads"),
            err("STK130", "run.yaml:3: tune.method"),
            err("STK136", "run.yaml:4: where.host"),
        ],
    ),
    "several keys twice": (
        "model: a\nmodel: b\n" + DATA + "train: {seed: 1, seed: 2}\n",
        [err("STK103", "run.yaml:2: model"), err("STK103", "run.yaml:4: train.seed")],
    ),
}

RUN_FILES: Table = {**SYNTAX, **KEYS, **VALUES, **NATIVE, **CONFLICTS, **SEVERAL}
