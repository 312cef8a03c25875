import pytest
from update_oids import committed, table

from pgcdc_cli.types.pg_type import PgType, builtin


def test_the_table_of_built_in_types_is_the_servers_own(database):
    assert committed() == table(database.connection)


def test_a_scalar_keeps_its_typmod():
    assert builtin(1700, 786438) == PgType(1700, 786438, "numeric")


def test_an_arrays_typmod_is_its_elements():
    assert builtin(1231, 786438) == PgType(
        1231, 786438, "numeric[]", "array", PgType(1700, 786438, "numeric")
    )


@pytest.mark.parametrize("oid", [3904, 4451, 83])
def test_ranges_multiranges_and_rows_stay_text(oid):
    assert builtin(oid, -1).category == "other"


@pytest.mark.parametrize("oid", [0, 2249, 2287, 9999, 16384])
def test_pseudo_types_and_a_users_own_are_unknown(oid):
    assert builtin(oid, -1) is None


def test_int2vector_is_no_array():
    assert builtin(22, -1) == PgType(22, -1, "int2vector")
    assert builtin(1006, -1).element == PgType(22, -1, "int2vector")
