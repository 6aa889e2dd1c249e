"""Collects the facts a plan follows from: the model's shape, the data's size, the machine, a price."""

from stoker.config.load import RunFile
from stoker.errors import StokerError
from stoker.facts import cards, prices, shapes
from stoker.facts.machine import Machine, examine
from stoker.plan import data
from stoker.plan.data import DataFacts
from stoker.plan.make import Inputs
from stoker.rundir import layout, prepared
from stoker.rundir.layout import RunDir
from stoker.rundir.prepared import Report


def machine(card: str | None, count: int) -> Machine:
    """A card of the catalogue, so many of them; or this machine."""
    return Machine.of_card(cards.find(card), count) if card else examine()


def inputs(run_file: RunFile, run_dir: RunDir | None, on: Machine) -> Inputs:
    """All inputs of a plan. Counted data facts win over declared ones."""
    run = run_file.run
    report = _report(run_file, run_dir)
    shape = shapes.resolve(run.model, run_file.folder, run.tokenizer, run.data.length)
    card = on.devices[0].card if on.devices else None
    offer = prices.cheapest(card) if card else None
    vocab = report.vocab if report else None
    return Inputs(run=run, machine=on, shape=shape, data=_data(run_file, report), offer=offer, vocab=vocab)


def _report(run_file: RunFile, run_dir: RunDir | None) -> Report | None:
    """The report of data prepared for this very run, if there is one."""
    if run_dir is None:
        try:
            run_dir = layout.find(str(run_file.run.name))
        except StokerError:
            return None
    return prepared.current_report(run_dir.data, run_file.run, run_file.folder)


def _data(run_file: RunFile, report: Report | None) -> DataFacts:
    return data.from_report(report) if report else data.declared(run_file.run)
