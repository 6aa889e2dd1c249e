"""The parts of `stoker.engine.trace`. Changes when torch, transformers, PEFT or bitsandbytes allocate differently."""
