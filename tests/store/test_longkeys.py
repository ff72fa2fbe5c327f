"""An ordered map whose keys may be longer than LMDB's."""

import itertools
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from penstock import kv
from penstock.store.longkeys import LongKeys

DATABASE = b"map"
SEGMENT = 4

# Few letters and short segments: keys share segments, and end at and around their borders.
texts = st.text("ab\x00", max_size=14).map(lambda text: text.encode())
ended = texts.map(lambda text: text.replace(b"\x00", b"\x00\xff") + b"\x00\x00")
operations = st.lists(st.tuples(st.booleans(), ended), max_size=40)
bounds = st.one_of(texts, ended)


def opened(path: Path) -> kv.Env:
    env = kv.open_env(path, create=True)
    env.databases([DATABASE], create=True)
    return env


@given(operations, bounds, st.none() | bounds)
def test_it_is_a_sorted_dict_of_keys_of_any_length(
    tmp_path_factory: object, changes: list[tuple[bool, bytes]], first: bytes, before: bytes | None
) -> None:
    env = opened(tmp_path_factory.mktemp("map"))  # type: ignore[attr-defined]
    nodes = itertools.count(1)
    with env, env.write() as txn:
        keys, model = LongKeys(env[DATABASE], segment_bytes=SEGMENT), dict[bytes, bytes]()
        for number, (puts, key) in enumerate(changes):
            if puts:
                keys.put(txn, key, b"%d" % number, new_node=lambda: next(nodes))
                model[key] = b"%d" % number
            else:
                assert keys.delete(txn, key) is (model.pop(key, None) is not None)
        assert dict(keys.items(txn)) == model
        wanted = [
            (key, model[key])
            for key in sorted(model)
            if key >= first and (before is None or key < before)
        ]
        assert list(keys.items(txn, first=first, before=before)) == wanted
        assert list(keys.items(txn, first=first, before=before, reverse=True)) == wanted[::-1]
        for _, key in changes:
            assert keys.get(txn, key) == model.get(key)
        for key in model:
            keys.delete(txn, key)
        assert txn.stat(env[DATABASE])["entries"] == 0
