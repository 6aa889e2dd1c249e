"""`stoker serve`: an OpenAI endpoint for a trained model, compared with it before it is called ready."""

from dataclasses import asdict
from typing import Any

from stoker import env, messages
from stoker.artifacts import model_server
from stoker.artifacts.model_server import Server
from stoker.plan.parity_verdict import Reference
from stoker.plan.serving_choices import Serving
from stoker.rundir import layout
from stoker.rundir.layout import RunDir
from stoker.terminal import console, parity_lines


def serve(name: str, port: int, overrides: list[str], *, stop: bool, as_json: bool) -> None:
    """Start a server, or end the one that runs."""
    run_dir = layout.find(name)
    if stop:
        _stop(run_dir, as_json=as_json)
        return
    asks = model_server.find_engine()[0] == "vllm" and model_server.find(run_dir) is None
    reference = parity_lines.make_reference(run_dir) if asks else None
    with console.status() as status:
        server, plan = model_server.start(
            run_dir, port, overrides, lambda s: status.show(messages.text("serve.starting", seconds=round(s)))
        )
    if not as_json:
        _explain(plan)
    compared = _compare(run_dir, server, reference)
    if as_json:
        shown = {**asdict(server), "url": server.url, "token_file": _token_file(run_dir), "plan": plan.model_dump()}
        console.data_json({**shown, "parity": compared})
        return
    console.talk("serve.ready", name=run_dir.name, url=server.url, log=server.log)
    console.talk("serve.ask", token=_token_words(run_dir), url=server.url, model=server.model, name=run_dir.name)
    console.data(server.url)


def _stop(run_dir: RunDir, *, as_json: bool) -> None:
    ended = model_server.stop(run_dir)
    if as_json:
        console.data_json({"stopped": asdict(ended) if ended else None})
    elif ended:
        console.talk("serve.stopped", name=run_dir.name, url=ended.url)
    else:
        console.talk("serve.idle", name=run_dir.name)


def _explain(plan: Serving) -> None:
    for reason in plan.reasons:
        console.talk("serve.reason", about=reason.about, text=reason.text)


def _compare(run_dir: RunDir, server: Server, reference: Reference | None) -> dict[str, Any] | None:
    """The parity gate; an endpoint that does not answer like the trained model is ended, not served."""
    if server.engine != "vllm":
        console.talk("serve.unchecked")
        return None
    try:
        return parity_lines.compare(run_dir, "served", model_server.endpoint(run_dir, server), reference)
    except BaseException:
        model_server.stop(run_dir)
        raise


def _token_file(run_dir: RunDir) -> str | None:
    return None if env.read(env.API_TOKEN) else str(run_dir.token_file)


def _token_words(run_dir: RunDir) -> str:
    """How a shell finds the token."""
    return f"${env.API_TOKEN.name}" if env.read(env.API_TOKEN) else f"$(cat {run_dir.token_file})"
