import pickle

import pytest

from cluster import errors
from cluster.model.ids import derived_id, parse_name


def _tree(cls: type[errors.RaycallError]) -> list[type[errors.RaycallError]]:
    return [cls, *(leaf for sub in cls.__subclasses__() for leaf in _tree(sub))]


@pytest.mark.parametrize("cls", _tree(errors.RaycallError))
def test_every_error_has_its_own_code_and_survives_pickling(cls: type[errors.RaycallError]) -> None:
    error = cls("what went wrong", field="limit")
    assert pickle.loads(pickle.dumps(error)) == error
    assert [other.code for other in _tree(errors.RaycallError)].count(cls.code) == 1
    assert cls().detail


def test_derived_ids_are_stable_and_keep_their_parts_apart() -> None:
    assert derived_id("a", "bc") != derived_id("ab", "c")
    assert derived_id("p", "src/a.py") == "20bc21949b3617ec337bf35d9398daae"


@pytest.mark.parametrize("name", ["ap-erp", "main", "00000000-0000-0000-0000-000000000001", "a_b", "NOT"])
def test_odd_but_legal_names_are_accepted(name: str) -> None:
    assert parse_name(name, "project") == name


@pytest.mark.parametrize("name", ["", " ", "-x", "../x", "a/b", "a b", "x" * 101, "é", 'a"b', "a\n"])
def test_names_that_could_be_syntax_somewhere_are_refused(name: str) -> None:
    with pytest.raises(errors.UsageError) as caught:
        parse_name(name, "project")
    assert caught.value.field == "project"
