"""Platforms: recognised by their signs; what survives a stop is known by path."""

import pytest

from stoker.facts import platforms
from stoker.facts.platforms import Platform


def _nothing(_: str) -> bool:
    return False


def _named(name: str) -> Platform:
    return next(platform for platform in platforms.platforms() if platform.name == name)


def test_every_platform_has_sources() -> None:
    assert len(platforms.platforms()) == 11
    for platform in platforms.platforms():
        assert platform.sources, platform.name


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({"AutoDLContainerUUID": "x"}, "autodl"),
        ({"COLAB_RELEASE_TAG": "x"}, "colab"),
        ({"KAGGLE_KERNEL_RUN_TYPE": "Batch"}, "kaggle"),
        ({"RUNPOD_POD_ID": "x"}, "runpod"),
        ({"SLURM_JOB_ID": "7"}, "slurm"),
    ],
)
def test_a_platform_is_recognised_by_its_variables(environment: dict[str, str], name: str) -> None:
    found = platforms.detect(environment, "box", _nothing)
    assert found is not None
    assert found.name == name


def test_autodl_is_recognised_over_ssh_where_its_variables_are_missing() -> None:
    by_path = platforms.detect({}, "box", lambda path: path == "/root/autodl-tmp")
    by_host = platforms.detect({}, "autodl-container-8f21", _nothing)
    assert by_path is not None
    assert by_host is not None
    assert by_path.name == by_host.name == "autodl"
    assert by_path.detect.env_in_login_shell_only


def test_variables_go_before_folders() -> None:
    found = platforms.detect({"SLURM_JOB_ID": "7"}, "box", lambda path: path == "/root/autodl-tmp")
    assert found is not None
    assert found.name == "slurm"


def test_a_plain_machine_is_no_platform() -> None:
    assert platforms.detect({"HOME": "/root"}, "laptop", _nothing) is None


def test_the_longest_storage_that_holds_a_path_counts() -> None:
    autodl = _named("autodl")
    scratch, durable = autodl.storage_of("/root/autodl-tmp/runs"), autodl.storage_of("/root/autodl-fs/runs")
    assert scratch is not None
    assert durable is not None
    assert (scratch.survives_stop, scratch.survives_release) == (True, False)
    assert (durable.survives_stop, durable.survives_release) == (True, True)


def test_what_cannot_be_undone_is_marked() -> None:
    assert _named("autodl").meter.stops_on == "stop"
    assert _named("vast").meter.stops_on == "release"


def test_limits_of_the_free_platforms_are_known() -> None:
    assert _named("colab").limits.idle_minutes == 90
    assert _named("kaggle").limits.weekly_gpu_hours == 30
