"""As environments were written before verifiers 0.2."""

import verifiers as vf


def load_environment() -> "vf.Environment":
    return vf.SingleTurnEnv(rubric=vf.Rubric(funcs=[]))
