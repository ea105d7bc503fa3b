"""Rule files: what a user's file may change, and one sentence for each mistake in it."""

import pickle

import pytest

from sparq.pipeline.reading.schema import CLICK_SCHEMA
from sparq.pipeline.sessions.rules import REASONS, RulesError, read_rules
from tests.pipeline.sessions.visitors import RULES, Click, judged_once, reasons


def rules_of(tmp_path, text):
    """The shipped rules with a user's file laid over them."""
    file = tmp_path / "my.toml"
    file.write_text(text)
    return read_rules(file, CLICK_SCHEMA)


def test_the_shipped_rules_keep_only_the_columns_that_they_use():
    """The shipped rules keep one column of a click; each rule says for people what it means."""
    assert list(RULES.kept) == ["followed"]
    assert [name for name, *_ in RULES.rules] == list(REASONS)
    assert all(REASONS.values())
    assert pickle.loads(pickle.dumps(RULES)).kept == RULES.kept


def test_a_user_adds_columns_and_a_rule(tmp_path):
    """A rule over a new column of visits, made of new columns of clicks, finds a visit."""
    rules = rules_of(
        tmp_path,
        """
        [clicks]
        failed = "status >= 200 AND path LIKE '%login%'"
        [columns]
        failures = "COUNT(*) FILTER (WHERE failed)"
        methods = "COUNT(DISTINCT method)"
        [windows.quick_failures]
        where = "failed"
        seconds = 60
        [rules.guesses_passwords]
        when = "failures >= 3 AND quick_failures = 2 AND methods = 1"
        amount = "failures"
        """,
    )
    clicks = [Click(at, "/login?try=1", referer="http://x.example/") for at in (0, 30, 1000)]
    (found,) = judged_once(clicks, rules).to_dicts()

    assert ("guesses_passwords", 3) == (found["reason"], found["amount"])
    assert list(rules.kept) == ["method", "followed", "failed"]


def test_a_user_changes_thresholds_and_switches_off(tmp_path):
    """Changed keys of a rule replace those that ship; a rule switched off finds nothing."""
    clicks = [Click(at % 5, f"/{at}", referer="http://x.example/") for at in range(20)]
    stricter = rules_of(tmp_path, "[rules.burst]\nwhen = 'burst >= 21'")
    without = rules_of(tmp_path, "[rules.burst]\nenabled = false")
    slower = rules_of(tmp_path, "[visit]\ngap = 2")
    apart = [Click(0), Click(3), Click(5)]

    assert reasons(clicks) == ["burst"]
    assert reasons(clicks, stricter) == reasons(clicks, without) == []
    always = rules_of(tmp_path, "[visit]\ngap = 2\n[rules.all]\nwhen = 'clicks > 0'")
    assert judged_once(apart, always)["amount"].to_list() == [1, 2]
    assert slower.visit.gap == 2


def test_endings_and_the_columns_that_tell_visitors_apart_are_settings(tmp_path):
    """An ending can become one of pages' parts, and visitors can be told apart by other columns."""
    text = "[kinds]\nphp = 'asset'\ncss = 'page'\n[visit]\nvisitor = ['user_agent']\n"
    rules = rules_of(tmp_path, f"{text}[rules.all]\nwhen = 'clicks > 0'")
    clicks = [Click(0, "/a.php"), Click(1, "/b.css", address="198.51.100.1")]
    (found,) = judged_once(clicks, rules).to_dicts()

    assert (found["clicks"], found["assets"], found["pages"]) == (2, 1, 1)


MISTAKES = [
    ("[rules.x]\nwhen = 'foo > 1'", "rules.x.when: no column foo"),
    ("[rules.x]\nwhen = 'pagess > 1'", "rules.x.when: no column pagess: did you mean pages?"),
    ("[rules.x]\nwhen = 'clicks'", "rules.x.when must be true or false, and is of type Int64"),
    ("[rules.x]\nwhen = 'clicks > address'", "rules.x.when: cannot compare string with numeric"),
    ("[rules.x]\nwhen = 'clicks >'", "rules.x.when: unable to parse 'clicks >' as Expr"),
    ("[rules.x]\nwhen = 'SUM(clicks) > 3'", "rules.x.when: it may not aggregate"),
    ("[rules.x]\namount = 'clicks'", "rules.x: it lacks the key when"),
    ("[rules.x]\nwhn = ''", "rules.x.whn is unknown: did you mean when?"),
    ("[rules.x]\nwhen = 'late'\namount = 'address'", "rules.x.amount must be a number"),
    ("[rules]\nx = 1", "rules.x: Expected a table, got a whole number"),
    ("[rules.X]\nwhen = 'late'", "rules.X must have a name of a-z, 0-9 and _"),
    ("[visit]\ngap = 'x'", "visit.gap: Expected a whole number, got a text in quotes"),
    ("[visit]\ngap = 0", "visit.gap: Expected a whole number >= 1"),
    ("[visit]\nvisitor = ['adress']", "a click has no column adress: did you mean address?"),
    ("[kinds]\nphp = 'part'", "kinds.php: Invalid enum value 'part'"),
    ("[clicks]\npage = 'status'", "clicks.page: a click has a column of this name already"),
    ("[columns]\npages = 'MAX(status)'", "columns.pages: a visit has a column of this name"),
    ("[columns]\nx = 'status'", "columns.x: it gives a value for each row: it must aggregate them"),
    ("[columns]\nx = 'NOSUCH(status)'", "columns.x: unsupported function 'nosuch'"),
    ("[columns]\nfollowed = false", "rules.no_resources.when: no column followed"),
    ("[windows.x]\nwhere = 'kind'\nseconds = 1", "windows.x.where must be true or false"),
    ("[windows.x]\nwhere = 'true'\nseconds = 1\nsame = 'pag'", "no column pag: did you mean page?"),
    ("[colums]\nx = 'y'", "colums is unknown: did you mean columns?"),
    ("x = ", "cannot be read: Invalid value"),
]


@pytest.mark.parametrize(("text", "sentence"), MISTAKES)
def test_a_mistake_is_one_sentence_that_names_its_place(tmp_path, text, sentence):
    """Each mistake is one sentence with the file and the place in it."""
    with pytest.raises(RulesError) as caught:
        rules_of(tmp_path, text)

    assert sentence in str(caught.value)
    assert str(tmp_path / "my.toml") in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(RulesError, match=r"--rules=.*gone.toml cannot be read"):
        read_rules(tmp_path / "gone.toml", CLICK_SCHEMA)
