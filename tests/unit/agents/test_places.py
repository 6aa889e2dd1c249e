"""Which machine a tool plans for is the one that `stoker train` would use."""

from pathlib import Path

import pytest

from stoker.agents import mcp_server
from stoker.errors import StokerError

RUN = "model: Qwen/Qwen2.5-0.5B\ndata: {train: a.jsonl}\nwhere: {place: ssh, host: paid}\n"


def test_a_plan_for_this_machine_is_no_consent_to_a_run_that_goes_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(RUN, encoding="utf-8")
    assert mcp_server.ReadRun.of(str(path), {}, None).place == "paid"
    with pytest.raises(StokerError) as caught:
        mcp_server.ReadRun.of(str(path), {}, "local")
    assert (caught.value.code, caught.value.fields) == ("STK559", {"place": "paid"})
    assert mcp_server.ReadRun.of("scratch_tiny", {}, "local").place == "local"
