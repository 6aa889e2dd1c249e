"""Live bytes on the tape follow references, as they do in torch."""

from stoker.estimate.tape import LEAF, Held, Tape, Tensor, Weight


def tape_with_input(size: int = 1000) -> tuple[Tape, list[Tensor]]:
    tape = Tape()
    weight = Weight(size // 4, 4, trained=True)
    return tape, [tape.op(512 * size, 4, (weight,))]


def test_bytes_live_as_long_as_something_refers_to_them() -> None:
    tape = Tape()
    first = tape.tensor(1024, 4)
    second = tape.tensor(512, 4)
    assert tape.live == 1536
    del first
    assert (tape.live, tape.peak) == (512, 1536)
    del second
    assert tape.live == 0


def test_small_tensors_are_rounded_up() -> None:
    tape = Tape()
    kept = tape.tensor(1, 1)
    assert tape.live == 512
    assert kept.bytes == 1


def test_saved_tensors_live_until_their_operation_is_gone_back_through() -> None:
    tape, hidden = tape_with_input()
    made = tape.op(512, 4, (hidden[0],), (hidden[0],))
    hidden.clear()
    assert tape.live == 512_000 + 512
    tape.start(made)
    del made
    tape.backward(0)
    assert [gradient.bytes for gradient in tape.kept] == [1000]
    assert tape.live == 1024


def test_an_operation_without_trained_inputs_saves_nothing() -> None:
    tape = Tape()
    plain = tape.tensor(5120, 4)
    made = tape.op(512, 4, (plain,), (plain,))
    del plain
    assert tape.live == 512
    assert made.edge is None


def test_a_sum_passes_its_gradient_on_and_two_gradients_meet_in_place() -> None:
    tape, hidden = tape_with_input()
    doubled = tape.add(hidden[0], hidden[0])
    tape.start(doubled)
    del doubled
    hidden.clear()
    tape.peak = tape.live
    tape.backward(1)
    assert tape.peak <= 2 * 512_000


def test_a_checkpointed_part_keeps_its_input_only() -> None:
    tape, hidden = tape_with_input()

    def part(x: Held) -> Tensor:
        x = tape.op(x.bytes, 4, (x,), (x,))
        x = tape.op(x.bytes, 4, (x,), (x,))
        return tape.op(512, 4, (x,), (x,))

    made = tape.checkpoint(part, hidden.pop())
    assert tape.live == 512_000 + 512
    tape.start(made)
    del made
    tape.peak = tape.live
    tape.backward(1)
    # Its input, two tensors made again, and a gradient on its way; the last result is not made again.
    assert tape.peak == 4 * 512_000 + 512


def test_a_shared_weight_s_gradients_wait_for_each_other() -> None:
    tape = Tape()
    weight = Weight(256, 4, trained=True, edge=tape.leaf())
    first = tape.op(512, 4, (weight,))
    second = tape.op(512, 4, (weight,))
    tape.start(tape.add(first, second))
    del first, second
    tape.backward(1)
    assert not tape.kept
    tape.backward(0)
    assert [gradient.bytes for gradient in tape.kept] == [1024]


def test_a_weight_that_has_a_gradient_keeps_no_second_one() -> None:
    tape = Tape()
    tape.keeps_gradients = False
    weight = Weight(256, 4, trained=True)
    assert weight.edge == LEAF
    tape.start(tape.op(512, 4, (weight,)))
    tape.backward(0)
    assert tape.live == 0
