"""The trained model in one file, for one machine: no ps, no worker, no server.

    python export.py LOGDIR model.npz            writes it, and tests it
    python export.py model.npz 848,575 176,2135  says how likely a click is, for each

The file has `ids` and `rows`, in the same order, and the dense weights `w`.
"""

import argparse
import json
import os
import sys
import types

import numpy as np

from cluster import tensorflow_v1 as tf
from cluster.task import fail
import problem


def read(logdir):
    """Returns the last checkpoint of a run, {ids, rows, w}, whatever ps wrote it."""
    path = tf.train.latest_checkpoint(logdir)
    if not path or not os.path.exists(f"{path}.rows-0.index"):
        fail(f"{logdir} has no checkpoint of a table")
    ids, rows, parts = [], [], 1
    while len(rows) < parts:
        part = tf.train.load_checkpoint(f"{path}.rows-{len(rows)}")
        parts, slots = part.get_tensor("parts"), part.get_tensor("entries")[:, 0]
        ids.append(part.get_tensor("ids")[slots >= 0])
        rows.append(part.get_tensor("rows")[slots[slots >= 0]])
    ids = np.concatenate(ids)
    if not len(ids):
        fail(f"{path} has no rows")
    ids = ids.astype("S") if ids.dtype.hasobject else ids
    w = tf.train.load_checkpoint(path).get_tensor("center")
    return {"ids": ids, "rows": np.concatenate(rows), "w": w}


def guess(model, args, ids):
    """Returns how likely a click is, for each impression [n] of ids [n, fields]."""
    order = np.argsort(model["ids"])
    at = np.searchsorted(model["ids"], ids, sorter=order)
    at = order[np.minimum(at, len(order) - 1)]
    known = model["ids"][at] == ids
    rows = np.where(known[..., None], model["rows"][at], 0).astype(np.float32)
    with tf.Graph().as_default(), tf.Session() as session:
        w = tf.constant(model["w"])
        return session.run(tf.sigmoid(problem.logits(w, tf.constant(rows), args)))


def export(logdir, name):
    """Writes the model of a run into a file; compares it with what the run says."""
    path = os.path.join(logdir, "result.json")
    try:
        with open(path) as file:
            result = json.load(file)
    except (OSError, ValueError) as error:
        fail(f"{path}: {error}")
    args, model = types.SimpleNamespace(**result["flags"]), read(logdir)
    with open(name + ".part", "wb") as file:
        np.savez(file, **model, rank=args.rank, hidden=args.hidden)
    os.replace(name + ".part", name)
    count, d = model["rows"].shape
    print(f"{name}: {count} rows of {d} numbers, {os.path.getsize(name) / 1e6:.1f} MB")
    try:
        data = problem.Clicks(args).load(args.data)
    except ValueError as error:
        fail(f"--data {args.data}: {error}")
    area = problem.auc(data.test_clicks, guess(model, args, data.test_ids))
    print(f"test AUC {area:.4f} here, {result['test_AUC']:.4f} in the run")


def say(name, impressions):
    """Prints how likely a click is, for each impression, a text like 848,575."""
    with np.load(name, allow_pickle=False) as file:
        model = {key: file[key] for key in file.files}
    args = types.SimpleNamespace(rank=int(model["rank"]), hidden=int(model["hidden"]))
    ids, kind = [one.split(",") for one in impressions], model["ids"].dtype
    fields = (len(model["w"]) - 1 - 2 * args.hidden) // (args.rank * args.hidden)
    if {*map(len, ids)} != {fields}:
        raise ValueError(f"an impression has {fields} ids, with commas between")
    ids = np.array(ids).astype("S" if kind.kind == "S" else kind)
    for one, found in zip(impressions, guess(model, args, ids), strict=True):
        print(f"{one}  {found:.4f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawTextHelpFormatter
    parser.add_argument("source", help="LOGDIR of a run, or a model.npz")
    parser.add_argument("rest", nargs="+", help="model.npz to write; or impressions")
    asked = parser.parse_args()
    try:
        if asked.source.endswith(".npz"):
            say(asked.source, asked.rest)
        elif asked.rest[1:]:
            fail(f"{asked.source}: one model.npz is written, not {len(asked.rest)}")
        else:
            export(asked.source, *asked.rest)
    except (OSError, KeyError, ValueError) as error:
        fail(f"{asked.source}: {error}")


if __name__ == "__main__":
    sys.exit(main())
