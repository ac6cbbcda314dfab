"""Rows that come and go: against the rule, under load, saved, and as processes."""

from __future__ import annotations

import importlib
import subprocess
import sys
import threading

import harness
import launch
import numpy as np
import pytest
import rules
import test_inputs
from harness import rounds, servers, stats, tf
from launch import copy_of, result, run_sh, saved_step, wait_until
from test_around import args_of, began, graph_of, script_of, write

FOLDER = "Dynamic-Embedding"
dynamic = importlib.import_module("cluster.dynamic")
problem = script_of(FOLDER).problem
pytestmark = pytest.mark.timeout(180)  # a deadlock hangs

# D.2 of the reference: F = 2, E = 3, row ← row − .1 (row − 1) for each time.
BATCHES = [(7, 7), (9,), (7, 5), (9,), (5,), (5,), (7,)]
TRACE = [
    {7: 0.2},
    {7: 0.2},
    {7: 0.28},
    {7: 0.28, 9: 0.1},
    {7: 0.28, 9: 0.1, 5: 0.1},
    {9: 0.1, 5: 0.19},
    {5: 0.19},
]
EXACT = ["--optimizer=sgd", "--row_learning_rate=0.1", "--start=0", "--sweep=1"]
SMALL = ["--rank=1", "--batch_size=2", "--capacity=12", "--slow_workers=0"]


class Worker:
    """One worker's graph and session; its ids [n] and targets c [n] are fed.

    The loss is 1/B ∑ ½ |row − c|² + ½ |w − 1|², for B = 2 of --batch_size. `gate(rows)`
    is called, if there is one, between pull and push, with the rows [n, d].
    """

    def __init__(self, name, *flags, num_ps=1, me=0, kind=tf.int64, gate=None, most=1):
        module = script_of(FOLDER)
        self.kind, self.args = (
            kind,
            args_of(module, *SMALL, *flags, num_ps=num_ps, me=me),
        )
        with graph_of(num_ps, me, name) as graph:
            device = f"/job:worker/task:{me}"
            with tf.device(device):
                self.ids = tf.placeholder(kind, [None, 1])
                self.targets = tf.placeholder(tf.float32, [None, 1])
            pieces = tf.fixed_size_partitioner(num_ps)
            start = tf.zeros([6])
            center = tf.get_variable("center", initializer=start, partitioner=pieces)
            self.table = dynamic.Table(self.args, kind)
            self.stats = stats.Stats(self.args)
            self.number = module.state(self.stats)

            def loss(weights, batch):
                w, rows = weights
                after = [tf.py_func(gate, [rows], [])] if gate else []
                with tf.control_dependencies(after):
                    c = batch[1][:, :, None]
                    error = tf.reduce_sum(0.5 * (rows - c) ** 2)
                    return error / self.args.batch_size + tf.reduce_sum(
                        0.5 * (w - 1) ** 2
                    )

            self.fetches = rounds.Calls(
                lambda last: module.graph(
                    self.args,
                    center,
                    self.table,
                    self.stats,
                    lambda: (self.ids, self.targets),
                    loss,
                    last,
                ),
                sorted({1, most}),
            ).fetches
            self.center = center.as_tensor()
            self.asked = tf.placeholder(kind, [None])
            self.looked = self.table.lookup(tf.reshape(self.asked, [-1, 1]))
            self.saver = dynamic.Saver(self.table)
            self.held = []
            for part in self.table.parts:
                with part.locked() as done:
                    found = [*part.export(), part.rows.value(), part.sums.value()]
                    done += found
                self.held.append(part.then(found))
        limit = 20000
        config = tf.ConfigProto(
            device_filters=["/job:ps", device], operation_timeout_in_ms=limit
        )
        launch.without_optimizer(config)
        self.session = tf.Session(servers(num_ps)[2][me], graph=graph, config=config)

    def begin(self):
        """As chief: initialises all."""
        began(self.session, self.stats)
        return self

    def fed(self, ids, c=1.0):
        """Returns what is fed for a mini-batch."""
        c = np.broadcast_to(np.float32(c), [len(ids)])
        names = ids if self.kind == tf.int64 else [str(i).encode() for i in ids]
        return {self.ids: np.array(names)[:, None], self.targets: c[:, None]}

    def round(self, ids, c=1.0, count=1):
        """Makes the rounds of a call, each with these ids; returns the counts."""
        _, counts, _ = self.session.run(self.fetches[count], self.fed(ids, c))
        return counts.tolist()

    def table_now(self):
        """Returns {id: row}, {id: count}, {id: seen}, {id: sums}, all ps together."""
        rows, count, seen, sums = {}, {}, {}, {}
        slots = [set() for _ in self.held]
        for k, (ids, entries, w, s) in enumerate(self.session.run(self.held)):
            for i, (slot, n, t) in zip(ids.tolist(), entries.tolist(), strict=True):
                i = int(i)
                count[i], seen[i] = n, t
                if slot >= 0:
                    assert slot not in slots[k], "two ids have one slot"
                    slots[k].add(slot)
                    rows[i], sums[i] = w[slot], s[slot]
        return rows, count, seen, sums

    def lookup(self, *ids):
        """Returns the rows of ids [n, d], as a test of the model reads them."""
        names = ids if self.kind == tf.int64 else [str(i).encode() for i in ids]
        return self.session.run(self.looked, {self.asked: np.array(names)})[:, 0]

    def known(self):
        """Returns what result.json says of the table."""
        return self.table.summary(self.session)


def name() -> str:
    return f"dynamic{next(harness._runs)}"


def alike(found: dict, wanted: dict) -> None:
    assert found.keys() == wanted.keys(), (found, wanted)
    for i in wanted:
        np.testing.assert_allclose(found[i], wanted[i], atol=1e-6, err_msg=str(i))


# --- The rule --------------------------------------------------------------------


@pytest.mark.parametrize("kind", [tf.int64, tf.string], ids=["numbers", "texts"])
@pytest.mark.parametrize("num_ps", [1, 2])
def test_trace_of_rows_that_come_and_go(num_ps, kind) -> None:
    rule = rules.dynamic_rows(
        [[(i, 1.0) for i in batch] for batch in BATCHES], 2, 3, 1, 0.1, lambda i: 0.0
    )
    flags = ["--admit=2", "--expire=3", *EXACT]
    one = Worker(name(), *flags, num_ps=num_ps, kind=kind).begin()
    for t, (batch, wanted, by_rule) in enumerate(
        zip(BATCHES, TRACE, rule, strict=True)
    ):
        assert one.round(batch) == [[t + 1, 0, rounds.APPLIED]]
        rows, count, seen, _ = one.table_now()
        alike(rows, wanted)
        alike(by_rule[0], wanted)
        assert (count, seen) == by_rule[1:]
    assert count == {5: 2, 7: 1}
    found = one.known()
    assert found == {
        **dict(ids=2, rows=1, rows_admitted=3, rows_expired=2),
        **dict(rows_late=0, rows_refused=0),
    }
    # n ids up, 8 bytes, a count of 4, a gradient of 4; rows down; and w each way.
    ids = [1, 1, 2, 1, 1, 1, 1]
    table = one.session.run(one.stats.counters)[0]
    have = dict(zip(stats.COUNTERS, table.tolist(), strict=True))
    size = 8 if kind == tf.int64 else 1
    assert have["pushed"] == (size + 4 + 4) * sum(ids) + 24 * 7
    assert have["pulled"] == 4 * sum(ids) + 24 * 7
    assert have["updates"] == have["rounds"] == have["examples"] / 2 == 7


@pytest.mark.parametrize(
    ("num_ps", "optimizer"),
    [(1, "adagrad"), (2, "sgd"), pytest.param(2, "adagrad", marks=launch.if_thorough)],
)
def test_drawn_batches_are_as_the_rule(num_ps, optimizer) -> None:
    """Two workers in turn, ids in both, rows drawn, sums that go with the row."""
    random = np.random.default_rng(3)
    batches = [
        [(int(i), float(c)) for i, c in zip(*drawn, strict=True)]
        for drawn in (
            (random.zipf(1.4, 6) % 40, random.normal(0, 1, 6)) for _ in range(40)
        )
    ]
    flags = [f"--optimizer={optimizer}", "--admit=2", "--expire=6", "--sweep=2"]
    flags += ["--row_learning_rate=0.2", "--start=0.5", "--first_sum=0.3"]
    flags += ["--capacity=60"]
    run = name()
    two = [Worker(run, *flags, num_ps=num_ps, me=me) for me in (0, 1)]
    two[0].begin()
    with tf.Graph().as_default(), tf.Session() as session:
        drawn = session.run(dynamic.draw(tf.range(40, dtype=tf.int64), 1, 0))
    rule = rules.dynamic_rows(
        batches,
        2,
        6,
        2,
        0.2,
        lambda i: 0.5 * drawn[i].astype(float),
        0.3 if optimizer == "adagrad" else None,
    )
    for t, (batch, wanted) in enumerate(zip(batches, rule, strict=True)):
        ids, c = zip(*batch, strict=True)
        two[t % 2].round(ids, c)
        rows, count, seen, _ = two[0].table_now()
        alike(rows, wanted[0])
        assert (count, seen) == wanted[1:]
    assert two[0].known()["rows_expired"] > 5
    w = two[0].session.run(two[0].center)
    np.testing.assert_allclose(w, 1 - 0.9**40, atol=1e-6)  # w ← w − .1 (w − 1)


def test_rows_that_stay_are_partitioned_embedding() -> None:
    """F = 1, E = 0, one row for each id: as if the table had been there before."""
    one = Worker(name(), "--admit=1", "--expire=0", *EXACT).begin()
    dense = np.zeros(10)
    random = np.random.default_rng(1)
    for _ in range(15):
        ids, c = random.integers(0, 10, 5), random.normal(0, 1, 5)
        one.round(ids, c)
        g = np.zeros(10)
        np.add.at(g, ids, dense[ids] - c)
        dense -= 0.1 * g
    np.testing.assert_allclose(one.lookup(*range(10))[:, 0], dense, atol=1e-6)


def test_rounds_of_a_call_see_each_other() -> None:
    one = Worker(name(), "--admit=2", "--expire=3", *EXACT, num_ps=2, most=3).begin()
    assert [c[0] for c in one.round([7], count=3)] == [1, 2, 3]
    alike(one.table_now()[0], {7: 0.19})  # admitted by the second, moved by two


def test_a_drawn_row_is_of_its_id_alone() -> None:
    ids = [3, 2**62, -5, 0, 17]
    with tf.Graph().as_default(), tf.Session() as session:
        numbers = session.run(dynamic.draw(tf.constant(ids, tf.int64), 4, 7))
        texts = tf.constant([str(i).encode() for i in ids[::-1]])
        names = session.run(dynamic.draw(texts, 4, 7))
        other = session.run(dynamic.draw(tf.constant(ids, tf.int64), 4, 8))
        many = session.run(dynamic.draw(tf.range(20000, dtype=tf.int64), 3, 7))
    np.testing.assert_array_equal(numbers, names[::-1])
    assert len({*numbers.ravel().tolist()} | {*other.ravel().tolist()}) == 40
    assert abs(many.mean()) < 0.02 and many.std() == pytest.approx(1, abs=0.02)
    assert np.abs(np.corrcoef(many.T) - np.eye(3)).max() < 0.03


# --- No row of another id ----------------------------------------------------------


class Gate:
    """Holds a worker between pull and push."""

    def __init__(self):
        self.pulled, self.go = threading.Event(), threading.Event()
        self.rows = None

    def __call__(self, rows):
        self.rows = rows[:, 0, 0].tolist()
        self.pulled.set()
        assert self.go.wait(20)


def held_push(*flags):
    """Returns worker A, and B who has pulled row 7 and not pushed; and B's thread."""
    gate, run = Gate(), name()
    flags = ["--admit=1", "--expire=3", *EXACT, *flags]
    a, b = (Worker(run, *flags, me=me, gate=g) for me, g in ((0, None), (1, gate)))
    a.begin()
    a.round([7])
    thread = threading.Thread(target=b.round, args=[[7, 7], -50.0])
    thread.start()
    assert gate.pulled.wait(20)
    return a, gate, thread


OTHERS = [[5, 5, 5, 5, 8, 5], [5, 5, 5, 5, 7, 5], [5, 5, 5, 5]]


@pytest.mark.parametrize("ids", OTHERS)
def test_a_push_after_an_expiry_moves_no_other_row(ids) -> None:
    """Row 7 has expired; its slot is another id's, or 7's own again, or nobody's."""
    a, gate, thread = held_push("--capacity=2")
    for i in ids:
        a.round([i])
    before = a.table_now()
    assert before[0].keys() == {*ids}, before
    gate.go.set()
    thread.join(20)
    alike(a.table_now()[0], before[0])
    assert a.known()["rows_late"] == 1  # a row, named twice
    assert gate.rows == [np.float32(0.1)] * 2


def test_a_slot_that_is_used_again_begins_anew() -> None:
    """The row is drawn again, and so are the sums of Adagrad."""
    flags = ["--admit=1", "--expire=1", "--sweep=1", "--capacity=1", "--start=0.5"]
    one = Worker(name(), *flags, "--row_learning_rate=0.1").begin()
    for i in (1, 1, 1, 2):
        one.round([i], 30.0)
    assert one.known()["rows_refused"] == 1  # 2 found no slot, and then 1 was forgotten
    one.round([2], 30.0)
    rows, _, _, sums = one.table_now()
    with tf.Graph().as_default(), tf.Session() as session:
        ((drawn,),) = session.run(dynamic.draw(tf.constant([2], tf.int64), 1, 0))
    g = 0.5 * drawn - 30
    np.testing.assert_allclose(sums[2], 0.1 + g * g, rtol=1e-6)
    np.testing.assert_allclose(rows[2], 0.5 * drawn - 0.1 * g / np.sqrt(0.1 + g * g))


def test_a_full_table_refuses_and_then_has_room() -> None:
    one = Worker(name(), "--admit=1", "--expire=3", *EXACT, "--capacity=2").begin()
    one.round([1, 2, 3])
    assert one.table_now()[0].keys() == {1, 2}
    assert one.known()["rows_refused"] == 1 and one.lookup(3) == [[0]]
    for _ in range(3):
        one.round([3])  # at last 1 and 2 have expired
    assert one.table_now()[0].keys() == set()
    one.round([3, 4])
    alike(one.table_now()[0], {3: 0.1, 4: 0.1})


def test_what_a_dead_worker_took_is_found_again() -> None:
    """It had taken two slots, and drawn a row, and gave none to an id."""
    one = Worker(name(), "--admit=1", "--expire=9", *EXACT, "--capacity=4").begin()
    one.round([1])
    part = one.table.parts[0]
    with one.session.graph.as_default():
        slots, taken = part.take(tf.constant([True, True]))
        with tf.control_dependencies([taken]):
            stopped = part.put(slots, tf.ones([2, 1]))
    one.session.run(stopped)
    one.round([2, 3, 4])  # one had room; then all that is free was found
    assert one.known()["rows_refused"] == 2
    one.round([2, 3, 4])
    assert one.table_now()[0].keys() == {1, 2, 3, 4}


def test_evaluation_admits_nobody() -> None:
    one = Worker(name(), "--admit=2", "--expire=3", *EXACT, num_ps=2).begin()
    one.round([7, 7, 9])
    before = one.table_now(), one.known()
    for _ in range(3):
        found = one.lookup(9, 7, 7, 4)
    np.testing.assert_allclose(found[:, 0], [0, 0.2, 0.2, 0], atol=1e-6)
    assert (one.table_now(), one.known()) == before
    one.round([1])
    one.round([9])  # its second time, whatever was looked up
    assert 9 in one.table_now()[0]


def test_two_workers_that_push_one_id_lose_nothing() -> None:
    """600 pushes of one row at once. Find, add and insert would lose half of them."""
    run, flags = name(), ["--admit=1", "--expire=0", *EXACT]
    two = [Worker(run, *flags, me=me, most=3) for me in (0, 1)]
    two[0].begin()
    # The gradient is row − c, and c is so far away that all are alike.
    far = -1e6

    def work(one):
        for _ in range(100):
            one.round([7], far, count=3)

    harness.at_once(two, work)
    row = two[0].table_now()[0][7][0]
    wanted = far * (1 - 0.9**600)
    lowest = far * (1 - 0.9**300)
    assert wanted == pytest.approx(row, rel=1e-5) and row != lowest
    assert two[0].session.run(two[0].stats.step) == 600


def test_two_workers_find_no_row_of_another_id() -> None:
    """Few slots, rows that come and go all the time, and one look for each round.

    With the rate 1 a row is 0 or, whoever pulled before whom, a multiple of c. And c is
    another prime for each id.
    """
    primes = dict(enumerate([101, 103, 107, 109, 113, 127, 131, 137, 139, 149]))
    flags = ["--admit=2", "--expire=3", "--sweep=2", "--optimizer=sgd", "--start=0"]
    flags += ["--row_learning_rate=1", "--capacity=5"]
    run, mine, wrong = name(), [[], []], []

    def check(ids, rows):
        wrong.extend(
            (i, row) for i, row in zip(ids, rows, strict=True) if row % primes[i]
        )

    def gate(me):
        return lambda rows: check(mine[me], rows[:, 0, 0].tolist())

    two = [Worker(run, *flags, me=me, gate=gate(me)) for me in (0, 1)]
    two[0].begin()

    def work(one):
        me = one.args.task_index
        random = np.random.default_rng(me)
        for _ in range(100):
            mine[me] = random.choice([*primes], 3, replace=False).tolist()
            one.round(mine[me], [primes[i] for i in mine[me]])
            check(primes, one.lookup(*primes)[:, 0].tolist())

    harness.at_once(two, work)
    assert not wrong, wrong[:5]
    found = two[0].known()
    assert found["rows_expired"] > 20 and found["rows_refused"] > 20, found
    assert found["rows"] == found["rows_admitted"] - found["rows_expired"]


# --- Saved -------------------------------------------------------------------------


MOVES = [(2, 1, tf.int64), (1, 3, tf.string)]


@pytest.mark.parametrize(
    ("old", "new", "kind"), launch.some(MOVES, [(2, 2, tf.int64), (2, 1, tf.string)])
)
def test_a_table_is_restored_on_another_number_of_ps(old, new, kind, tmp_path):
    """Then training goes on as if nothing had been: also the expiry."""
    flags = ["--admit=2", "--expire=4", "--sweep=1", "--row_learning_rate=0.1"]
    flags += ["--start=0.5", "--capacity=40"]
    random = np.random.default_rng(2)
    batches = [(random.integers(0, 15, 6), random.normal(0, 1, 6)) for _ in range(16)]
    one = Worker(name(), *flags, num_ps=old, kind=kind).begin()
    for batch in batches[:8]:
        one.round(*batch)
    path = str(tmp_path / "model.ckpt")
    one.saver.save(one.session, path, 8, write_meta_graph=False)
    kept, known = one.table_now(), one.known()
    other = Worker(name(), *flags, num_ps=new, kind=kind)
    other.saver.restore(other.session, f"{path}-8")
    with other.session.graph.as_default():
        other.session.run(other.stats.open())
    for a, b in zip(kept, other.table_now(), strict=True):
        alike(b, a)
    assert other.known() == known and known["rows_expired"] > 0
    for batch in batches[8:]:
        one.round(*batch)
        assert other.round(*batch)[0][1:] == [0, rounds.APPLIED]
    for a, b in zip(one.table_now(), other.table_now(), strict=True):
        alike(b, a)
    # Old files go as TensorFlow's do.
    for step in range(9, 16):
        one.round([1])
        one.saver.save(one.session, path, step, write_meta_graph=False)
    steps = {p.name.split(".")[1] for p in tmp_path.glob("model.*rows*")}
    assert steps == {f"ckpt-{step}" for step in range(11, 16)}


def test_rows_that_cannot_be_restored(tmp_path) -> None:
    one = Worker(name(), "--admit=1", "--expire=0", *EXACT).begin()
    one.round(range(8))
    path = str(tmp_path / "model.ckpt")
    one.saver.save(one.session, path, 1, write_meta_graph=False)
    few = Worker(name(), "--capacity=4")
    with pytest.raises(tf.errors.InvalidArgumentError, match="--capacity 4 is too"):
        few.saver.restore(few.session, f"{path}-1")
    wide = Worker(name(), "--rank=2")
    with pytest.raises(ValueError, match="its rows have 1 numbers, not 2"):
        wide.saver.restore(wide.session, f"{path}-1")
    for file in tmp_path.glob("*.rows-*"):
        file.unlink()
    with pytest.raises(ValueError, match="it has no rows"):
        wide.saver.restore(wide.session, f"{path}-1")


# --- The problem -------------------------------------------------------------------


def args_for(*flags):
    return args_of(script_of(FOLDER), *flags)


def load(data, *flags, workers=2):
    """Returns what the script's problem loads, for these flags."""
    args = args_for(f"--data={data}", "--batch_size=2", *flags)
    return problem.Clicks(args).load(args.data, workers)


def test_items_are_born_and_die_in_the_drawn_log() -> None:
    flags = ["--days=30", "--impressions=500", "--users=50", "--born=10", "--life=5"]
    data = load("drawn", *flags, "--once=0.25")
    ids = np.concatenate([data.ids, data.test_ids])
    assert ids.shape == (15000, 2) and len(data.test_ids) == 500
    day = np.arange(15000) // 500
    user, item = ids[:, 0] // 2, ids[:, 1] // 2
    assert (ids % 2 == [0, 1]).all()
    born = item // 10 - 5  # numbers are given out by day
    assert (born < day).all() and (born >= day - 5).all()
    assert len(np.unique(item)) == pytest.approx(340, abs=10)
    names, counts = np.unique(user, return_counts=True)
    assert (names < 50).sum() == 50 and (counts[names >= 50] == 1).all()
    assert (user >= 50).mean() == pytest.approx(0.25, abs=0.02)
    assert 0.2 < data.ctr < 0.5
    again = load("drawn", *flags, "--once=0.25")
    np.testing.assert_array_equal(data.ids, again.ids)
    np.testing.assert_array_equal(data.clicks, again.clicks)


def test_auc_is_exact() -> None:
    """As all pairs say, with ties."""
    random = np.random.default_rng(0)
    clicks, guesses = random.integers(0, 2, 80), random.integers(0, 9, 80) / 9
    ones, zeros = guesses[clicks == 1], guesses[clicks == 0]
    pairs = (ones[:, None] > zeros) + 0.5 * (ones[:, None] == zeros)
    assert problem.auc(clicks, guesses) == pytest.approx(pairs.mean(), abs=1e-12)
    assert problem.auc(clicks, clicks) == 1 and problem.auc(clicks, -clicks) == 0


def test_deepfm_is_its_formula() -> None:
    args = args_for("--rank=3", "--hidden=4")
    random = np.random.default_rng(0)
    rows = random.normal(0, 1, (5, 2, 3)).astype(np.float32)
    shapes = problem.shapes(args, 2)
    bias, w1, b1, w2 = (random.normal(0, 1, s).astype(np.float32) for s in shapes)
    wanted = bias + rows[:, 0, 0] + rows[:, 1, 0]
    wanted = wanted + (rows[:, 0, 1:] * rows[:, 1, 1:]).sum(1)
    wanted = wanted + (np.maximum(rows.reshape(5, 6) @ w1 + b1, 0) @ w2)[:, 0]
    w = np.concatenate([x.ravel() for x in (bias, w1, b1, w2)])
    with tf.Graph().as_default(), tf.Session() as session:
        found = session.run(problem.logits(tf.constant(w), tf.constant(rows), args))
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_the_log_is_read_in_order_and_again() -> None:
    args = args_for("--batch_size=3")
    ids = np.arange(16).reshape(8, 2)
    data = problem.Data(ids, np.arange(8) % 2, ids[:2], np.arange(2), 0.5)
    data = data._replace(clicks=data.clicks.astype(np.float32))
    with tf.Graph().as_default(), tf.Session() as session:
        batch = problem.build(data, args).batch
        found = [session.run(batch(tf.constant(n, tf.int64)))[0] for n in range(3)]
    assert [f[:, 0].tolist() for f in found] == [[0, 2, 4], [6, 8, 10], [0, 2, 4]]


MOVIES = "user_id,movie,rating,time\n" + "".join(
    f"{n % 4},{n % 3},{(n % 5 + 0.5) % 4 + 1},{99 - n}\n" for n in range(40)
)
CRITEO = "".join(
    "\t".join([str(n % 2), *["", "1", "-1", "70"], *["5"] * 9, *["ab", ""] * 13]) + "\n"
    for n in range(40)
)
NPZ = {"ids": [[1, 2], [3, 4]] * 10, "clicks": [0, 1] * 10}


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("r.csv", MOVIES),
        ("r.dat", MOVIES.split("\n", 1)[1].replace(",", "::")),
        ("r.data", MOVIES.split("\n", 1)[1].replace(",", "\t")),
    ],
)
def test_movielens_files_in_the_order_of_time(file, content, tmp_path) -> None:
    data = load(write(tmp_path / file, content))
    users = [2 * (n % 4) for n in reversed(range(40))]
    assert data.ids[:, 0].tolist() == users[:36]
    assert (data.ids[:, 1] % 2 == 1).all() and len(data.test_ids) == 4
    stars = [(n % 5 + 0.5) % 4 + 1 for n in reversed(range(40))]
    assert data.clicks.tolist() == [float(s >= 4) for s in stars[:36]]


def test_the_log_of_criteo(tmp_path) -> None:
    data = load(write(tmp_path / "train.txt", CRITEO))
    assert data.ids.shape == (36, 39) and data.clicks.tolist() == [0, 1] * 18
    numbers, names = data.ids[0, :13].tolist(), data.ids[0, 13:].tolist()
    assert numbers[:5] == [b"1:", b"2:1", b"3:-1", b"4:18", b"5:2"]  # ln(70)² = 18.05
    assert names == [b"%d:%s" % (14 + k, (b"ab", b"")[k % 2]) for k in range(26)]


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("r.npz", "nonsense", "not a readable .npz file"),
        ("r.npz", {"ids": [[1]]}, "has no clicks; found ids"),
        ("r.npz", {**NPZ, "ids": [[0.5]] * 20}, "ids must be whole numbers or texts"),
        ("r.npz", {**NPZ, "ids": [1] * 20}, "must be [n, fields] and [n]"),
        ("r.npz", {**NPZ, "clicks": [0, 7] * 10}, "click 1 is 7, not 0 or 1"),
        ("r.npz", {**NPZ, "clicks": [0] * 20}, "all impressions are clicks, or none"),
        ("r.npz", {"ids": [[1]] * 4, "clicks": [0, 1] * 2}, "need 4"),
        ("r.csv", MOVIES + "3,x,1,9\n", "line 42 is not user, item, rating, time: '3,"),
        ("r.txt", CRITEO + "1\t2\n", "line 41 is not label, 13 numbers, 26 names"),
        ("r.csv", "user_id\n", "has no impressions"),
        ("r.xls", MOVIES, "choose drawn, a .npz file, MovieLens' .csv"),
    ],
)  # fmt: skip
def test_a_log_that_cannot_be_used(file, content, words, tmp_path) -> None:
    with pytest.raises(ValueError) as error:
        load(write(tmp_path / file, content))
    assert words in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("folder", [FOLDER, "Hybrid-Embedding"])
def test_every_script_refuses_wrong_flags(folder, capsys, monkeypatch) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    module = script_of(folder)
    for changes, words in test_inputs.MISTAKES:
        with pytest.raises(SystemExit) as end:
            module.parse_args(test_inputs.flags(changes))
        test_inputs.check(end.value.code, capsys.readouterr().err, words)


# --- As processes ------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_run_of_which_a_ps_and_a_worker_die(tmp_path) -> None:
    """Then on another number of ps; then in one file, on one machine.

    All updates are made, the counters account for each and for each row.
    """
    copy, logdir = copy_of(FOLDER, tmp_path), tmp_path / "a logdir"
    before = launch.tree(copy)
    command = ["--save_seconds", "0.5", "--slow_workers", "0.02"]
    env = {"MAX_RESTARTS": "1", "LOGDIR": str(logdir)}
    with run_sh(copy, "--steps", "400", *command, **env) as run:
        for job, least in (("worker", 40), ("ps", 120)):
            wait_until(lambda least=least: saved_step(logdir) > least, 120, run)
            run.task(job, 1).kill()
            run.wait_for(f"{job} 1 ended with status 137; restart 1 of 1")
        assert run.wait() == 0, run.output
        run.nothing_left()
    assert not launch.strange(run.lines), run.output
    with run_sh(copy, "--steps", "450", NUM_PS="3", LOGDIR=str(logdir)) as run:
        assert run.wait() == 0, run.output
    assert "resumes from global step 400" in run.output
    done = result(logdir)
    assert (done["scheme"], done["global_steps"], done["ps"]) == (FOLDER, 450, 3)
    assert sum(done["rounds_per_worker"].values()) == 450
    assert done["examples"] == 45000
    assert done["rows"] == done["rows_admitted"] - done["rows_expired"]
    assert done["rows_expired"] > 100 and done["rows_refused"] == 0, done
    assert done["test_AUC"] > 0.55 and 0.8 < done["test_calibration"] < 1.25, done
    assert launch.tree(copy) == before
    # The same, without any task.
    model = str(tmp_path / "model.npz")
    words = [sys.executable, "-B", "export.py"]
    tried = [
        subprocess.run([*words, *w], cwd=copy, capture_output=True, text=True)
        for w in ([str(logdir), model], [model, "0,1401", "9999999998,3"])
    ]
    assert [t.returncode for t in tried] == [0, 0], tried
    area = f"{done['test_AUC']:.4f}"
    assert f"{done['rows']} rows of 8 numbers" in tried[0].stdout
    assert tried[0].stdout.endswith(f"test AUC {area} here, {area} in the run\n")
    assert tried[1].stdout.startswith("0,1401  0.") and tried[1].stdout.count("\n") == 2
    for mistake, sentence in (
        ([str(logdir), str(tmp_path / "none" / "m.npz")], "No such file or directory"),
        ([model, "848"], "an impression has 2 ids, with commas between"),
        ([str(tmp_path), model], "result.json: [Errno 2] No such file"),
    ):
        words[3:] = mistake
        tried = subprocess.run(words, cwd=copy, capture_output=True, text=True)
        assert tried.returncode == 2 and sentence in tried.stderr, tried
        assert "Traceback" not in tried.stderr
    assert launch.tree(copy) == before
