import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.replication import commands

NAMES = st.text(st.characters(blacklist_characters="\0", blacklist_categories=("Cs",)), min_size=1)


@given(st.lists(NAMES))
def test_publication_names_are_read_back_as_they_were_given(names):
    assert commands.split_names(commands.publication_names(names)) == tuple(names)


def test_publication_names_that_a_user_wrote_are_folded_as_the_server_does():
    assert commands.split_names('Shop, "Shop" ,"a,b""c"') == ("shop", "Shop", 'a,b"c')


def test_quotes_are_doubled_and_backslashes_left_alone():
    text = commands.start_replication('s"x', Lsn.parse("1/2F"), [("a b", "it's\\")])
    assert text == 'START_REPLICATION SLOT "s""x" LOGICAL 1/2F ("a b" \'it\'\'s\\\')'


def test_an_option_may_come_twice():
    text = commands.start_replication("s", Lsn(0), [("a", "1"), ("b", None), ("a", "2")])
    assert text.endswith(' LOGICAL 0/0 ("a" \'1\', "b", "a" \'2\')')


def test_no_options_need_no_parentheses():
    assert commands.start_replication("s", Lsn(0), []) == 'START_REPLICATION SLOT "s" LOGICAL 0/0'


@pytest.mark.parametrize("quote", [commands.quote_identifier, commands.quote_literal])
def test_a_zero_byte_is_a_usage_error(quote):
    with pytest.raises(PgcdcError) as caught:
        quote("a\0b")
    assert caught.value.kind is ErrorKind.USAGE
