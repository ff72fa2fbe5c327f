"""DynamoDB's expressions.

The messages are DynamoDB's, as its users report them and as the services that imitate it record
them.
"""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.store.conditions import (
    Attr,
    BeginsWith,
    Between,
    Comparator,
    Comparison,
    Condition,
    Contains,
    Exists,
    In,
    Literal,
    Not,
    NotExists,
    Operand,
    Size,
    TypeIs,
    attr,
    holds,
)
from penstock.store.errors import InvalidConditionError
from penstock.store.expressions.binding import parse_condition, parse_projection, parse_update
from penstock.store.expressions.placeholders import Placeholders
from penstock.store.expressions.words import RESERVED
from penstock.store.kinds import ORDERED, ValueType, type_of
from penstock.store.paths import Path
from penstock.store.projections import projection
from penstock.store.updates import (
    Action,
    AddAction,
    DeleteAction,
    IfNotExists,
    ListAppend,
    Minus,
    Plus,
    RemoveAction,
    SetAction,
    Update,
    if_not_exists,
    list_append,
    minus,
    plus,
)
from penstock.store.values import Value
from tests.seeds import cases
from tests.store.anything import (
    combined,
    paths,
    small_bytes,
    small_numbers,
    small_texts,
    small_values,
)
from tests.store.printing import Printer

VALUES: dict[str, Value] = {
    ":a": 1,
    ":b": 2,
    ":s": "x",
    ":l": [1],
    ":t": "SS",
    ":set": {"x"},
    ":raw": b"ab",
    ":null": None,
    ":on": True,
    ":m": {},
}
NAMES = {"#n": "name", "#d": "the.name"}


def placeholders() -> Placeholders:
    return Placeholders(NAMES, VALUES)


# --- what is printed is read ----------------------------------------------------------------------

scalars: st.SearchStrategy[Value] = small_numbers | small_texts | small_bytes
one_path: st.SearchStrategy[Operand] = st.builds(Attr, paths)
measured = one_path | st.builds(Size, st.builds(Attr, paths))
ordering: st.SearchStrategy[Operand] = st.builds(Literal, scalars)
begun: st.SearchStrategy[Operand] = st.builds(Literal, small_texts | small_bytes)
anything: st.SearchStrategy[Operand] = st.builds(Literal, small_values)
bounds: st.SearchStrategy[list[Any]] = st.one_of(
    st.lists(small_numbers, min_size=2, max_size=2),
    st.lists(small_texts, min_size=2, max_size=2),
    st.lists(small_bytes, min_size=2, max_size=2),
).map(sorted)


def between(path: Path, low_high: list[Any]) -> Condition:
    return attr(path).between(*low_high)


sound_conditions = combined(
    st.one_of(
        st.builds(Comparison, st.sampled_from(Comparator), measured, ordering),
        st.builds(Comparison, st.sampled_from(Comparator), ordering, measured),
        st.builds(Comparison, st.sampled_from([Comparator.EQ, Comparator.NE]), measured, anything),
        st.builds(between, paths, bounds),
        st.builds(In, measured, st.lists(anything, min_size=1, max_size=3).map(tuple)),
        st.builds(BeginsWith, one_path, begun),
        st.builds(Contains, one_path, anything),
        st.builds(Exists, paths),
        st.builds(NotExists, paths),
        st.builds(TypeIs, paths, st.sampled_from(ValueType)),
    )
)
spaces = st.sampled_from([" ", "  ", "\n\t", "\r\n"])


@given(sound_conditions, spaces, st.booleans())
def test_a_condition_is_read_as_it_was_printed(
    condition: Condition, space: str, parentheses: bool
) -> None:
    printer = Printer(spaces=space, parentheses=parentheses)
    text = printer.condition(condition)
    used = printer.placeholders()
    assert parse_condition(text, used) == condition
    used.refuse_unused()


lists = st.builds(Literal, st.lists(st.integers(0, 2), max_size=2))
numbers = st.builds(Literal, small_numbers)
terms: st.SearchStrategy[Any] = st.one_of(
    st.builds(Attr, paths),
    st.builds(IfNotExists, paths, numbers | lists),
    st.builds(ListAppend, lists | st.builds(Attr, paths), lists),
)
elements = st.builds(Literal, st.sets(small_texts, min_size=1, max_size=2))
actions: st.SearchStrategy[Action] = st.one_of(
    st.builds(SetAction, paths, terms | anything | numbers),
    st.builds(SetAction, paths, st.builds(Plus, terms, numbers)),
    st.builds(SetAction, paths, st.builds(Minus, numbers, terms)),
    st.builds(RemoveAction, paths),
    st.builds(AddAction, paths, numbers | elements),
    st.builds(DeleteAction, paths, elements),
)
ORDER = (SetAction, RemoveAction, AddAction, DeleteAction)


@given(st.lists(actions, min_size=1, max_size=4), st.booleans())
def test_an_update_is_read_as_it_was_printed(several: list[Action], parentheses: bool) -> None:
    try:
        update = Update(tuple(sorted(several, key=lambda action: ORDER.index(type(action)))))
    except InvalidConditionError:
        return
    printer = Printer(parentheses=parentheses)
    text = printer.update(update)
    used = printer.placeholders()
    assert parse_update(text, used) == update
    used.refuse_unused()


@given(st.lists(paths, min_size=1, max_size=4))
def test_a_projection_is_read_as_it_was_printed(several: list[Path]) -> None:
    try:
        wanted = projection(*several)
    except InvalidConditionError:
        return
    printer = Printer()
    text = ", ".join(printer.path(path) for path in wanted)
    assert parse_projection(text, printer.placeholders()) == wanted


@settings(max_examples=cases(50))
@given(st.text("ab#n:(),.[]01 =<>+-_@é\ud800", max_size=12))
def test_any_text_is_an_expression_or_refused(text: str) -> None:
    for parse in (parse_condition, parse_update, parse_projection):
        assert refusal(parse, text).startswith("Invalid ")


def refusal(parse: Callable[[str, Placeholders], object], text: str) -> str:
    try:
        parse(text, placeholders())
    except InvalidConditionError as refused:
        return str(refused)
    return "Invalid in no way"


# --- what expressions mean ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("a = :a", attr("a").eq(1)),
        ("a<>:a", attr("a").ne(1)),
        (":a <= a", Comparison(Comparator.LE, Literal(1), Attr(("a",)))),
        ("a < b", attr("a").lt(attr("b"))),
        ("#n.#d[3].c > :a", attr(("name", "the.name", 3, "c")).gt(1)),
        ("a . b [ 0 ] >= :a", attr("a.b[0]").ge(1)),
        ("a between :a and :b", attr("a").between(1, 2)),
        ("a IN (:a, b)", attr("a").in_(1, attr("b"))),
        ("begins_with(a, :s)", attr("a").begins_with("x")),
        ("contains (a, :raw)", attr("a").contains(b"ab")),
        ("contains(:set, a)", Contains(Literal({"x"}), Attr(("a",)))),
        ("attribute_exists(a.b)", attr("a.b").exists()),
        ("attribute_not_exists(a)", attr("a").not_exists()),
        ("attribute_type(a, :t)", attr("a").type_is("SS")),
        ("size(a) > :a", attr("a").size().gt(1)),
        ("size(:s) > a", Comparison(Comparator.GT, Size(Literal("x")), Attr(("a",)))),
        ("(size(a)) > (:a)", attr("a").size().gt(1)),
        ("((size(a)) > :a)", attr("a").size().gt(1)),
        ("(a) = :a", attr("a").eq(1)),
        ("((a) = :a)", attr("a").eq(1)),
        ("(attribute_exists(a))", attr("a").exists()),
        ("NOT a = :a", ~attr("a").eq(1)),
        ("NOT NOT (a = :a)", ~~attr("a").eq(1)),
        ("NOT a = :a AND b = :b", ~attr("a").eq(1) & attr("b").eq(2)),
        (
            "a = :a OR b = :b AND c = :a",
            attr("a").eq(1) | (attr("b").eq(2) & attr("c").eq(1)),
        ),
        (
            "(a = :a OR b = :b) AND c = :a",
            (attr("a").eq(1) | attr("b").eq(2)) & attr("c").eq(1),
        ),
        (
            "a = :a AND (b = :b AND (c = :a))",
            attr("a").eq(1) & attr("b").eq(2) & attr("c").eq(1),
        ),
    ],
)
def test_a_condition_means_what_dynamodb_says(text: str, condition: Condition) -> None:
    assert parse_condition(text, placeholders()) == condition


@pytest.mark.parametrize(
    ("text", "update"),
    [
        ("SET a = :a, b.c[1] = d", Update().set("a", 1).set("b.c[1]", attr("d"))),
        ("set a = a + :a", Update().set("a", plus(attr("a"), 1))),
        ("SET a=:a-b", Update().set("a", minus(1, attr("b")))),
        ("SET a = (a + :a)", Update().set("a", plus(attr("a"), 1))),
        ("SET a = (a) - (:a)", Update().set("a", minus(attr("a"), 1))),
        (
            "SET a = if_not_exists(a, :a) + :b",
            Update().set("a", plus(if_not_exists("a", 1), 2)),
        ),
        (
            "SET a = list_append(if_not_exists(a, :l), :l)",
            Update().set("a", list_append(if_not_exists("a", [1]), [1])),
        ),
        ("REMOVE a, #d[2]", Update().remove("a", ("the.name", 2))),
        ("ADD a :a, b :set", Update().add("a", 1).add("b", {"x"})),
        ("DELETE a :set", Update().delete("a", {"x"})),
        (
            "DELETE d :set ADD c :a REMOVE b SET a = :null",
            Update().delete("d", {"x"}).add("c", 1).remove("b").set("a", None),
        ),
    ],
)
def test_an_update_means_what_dynamodb_says(text: str, update: Update) -> None:
    assert parse_update(text, placeholders()) == update


# --- what is refused, and how it is told ----------------------------------------------------------

OPERAND = "Incorrect operand type for operator or function; "
COUNT = "Incorrect number of operands for operator or function; "
DISTINCT = (
    "The first operand must be distinct from the remaining operands for this operator or function; "
)
TYPES = "{B,NULL,SS,BOOL,L,BS,N,NS,S,M}"
BETWEEN = "The BETWEEN operator requires "
BOUND = "bound operand: AttributeValue: "
REWRITE = "must remove or rewrite one of these paths; "


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "The expression can not be empty;"),
        ("a = :a AND", 'Syntax error; token: "<EOF>", near: "AND"'),
        ("a = :a AND __typename = :b", 'Syntax error; token: "_", near: "AND __"'),
        ("a == :a", 'Syntax error; token: "=", near: "== :a"'),
        ("a = 'x'", 'Syntax error; token: "\'", near: "= \'x"'),
        ("a = 1", 'Syntax error; token: "1", near: "= 1"'),
        ("a = :a b", 'Syntax error; token: "b", near: ":a b"'),
        ("a = :a)", 'Syntax error; token: ")", near: ":a)"'),
        ("(a = :a", 'Syntax error; token: "<EOF>", near: ":a"'),
        ("(a) AND b = :a", 'Syntax error; token: "AND", near: ") AND b"'),
        ("a", 'Syntax error; token: "<EOF>", near: "a"'),
        ("a[-1] = :a", 'Syntax error; token: "-", near: "[-1"'),
        ("a.0 = :a", 'Syntax error; token: "0", near: ".0 ="'),
        ("a IN :a", 'Syntax error; token: ":a", near: "IN :a"'),
        ("a IN ()", 'Syntax error; token: ")", near: "()"'),
        ("size() > :a", 'Syntax error; token: ")", near: "() >"'),
        ("set = :a", 'Syntax error; token: "set", near: "set ="'),
        ("#-x = :a", 'Syntax error; token: "#", near: "#-"'),
        ("((a = :a))", "The expression has redundant parentheses;"),
        ("((a)) = :a", "The expression has redundant parentheses;"),
        ("a = ((:a))", "The expression has redundant parentheses;"),
        ("((attribute_exists(a)))", "The expression has redundant parentheses;"),
        ("((a = :a)) AND status = !", "The expression has redundant parentheses;"),
        ("status = :a", "Attribute name is a reserved keyword; reserved keyword: status"),
        ("a.Name = :a", "Attribute name is a reserved keyword; reserved keyword: Name"),
        ("a[2147483648] = :a", "List index is not within the allowable range; index: [2147483648]"),
        ("exists(a)", "Invalid function name; function: exists"),
        ("SIZE(a) = :a", "Invalid function name; function: SIZE"),
        (
            "size(a)",
            "The function is not allowed to be used this way in an expression; function: size",
        ),
        (
            "attribute_exists(a) = :on",
            (
                "The function is not allowed to be used this way in an expression; "
                "function: attribute_exists"
            ),
        ),
        (
            "if_not_exists(a, :a) = :a",
            "The function is not allowed in a condition expression; function: if_not_exists",
        ),
        ("begins_with(a)", f"{COUNT}operator or function: begins_with, number of operands: 1"),
        ("size(a, b) = :a", f"{COUNT}operator or function: size, number of operands: 2"),
        (
            "#z = :a",
            (
                "An expression attribute name used in the document path is not defined; "
                "attribute name: #z"
            ),
        ),
        (
            "a = :z",
            "An expression attribute value used in expression is not defined; attribute value: :z",
        ),
        ("a = a", f"{DISTINCT}operator: =, first operand: [a]"),
        ("a.b[1] <> a.b[1]", f"{DISTINCT}operator: <>, first operand: [a, b, [1]]"),
        ("#d IN (:a, #d)", f"{DISTINCT}operator: IN, first operand: [the.name]"),
        ("contains(a, a)", f"{DISTINCT}operator: contains, first operand: [a]"),
        ("a BETWEEN :a AND a", f"{DISTINCT}operator: BETWEEN, first operand: [a]"),
        ("a < :l", f"{OPERAND}operator or function: <, operand type: L"),
        ("a >= :on", f"{OPERAND}operator or function: >=, operand type: BOOL"),
        ("a BETWEEN :null AND :b", f"{OPERAND}operator or function: BETWEEN, operand type: NULL"),
        ("begins_with(a, :a)", f"{OPERAND}operator or function: begins_with, operand type: N"),
        ("size(:a) = :a", f"{OPERAND}operator or function: size, operand type: N"),
        ("size(size(a)) = :a", f"{OPERAND}operator or function: size, operand type: N"),
        (
            "attribute_type(a, :a)",
            f"{OPERAND}operator or function: attribute_type, operand type: N",
        ),
        (
            "attribute_type(a, :s)",
            f"Invalid attribute type name found; type: x, valid types: {TYPES}",
        ),
        (
            "attribute_exists(:a)",
            "Operator or function requires a document path; operator or function: attribute_exists",
        ),
        (
            "a BETWEEN :b AND :a",
            (
                f"{BETWEEN}upper bound to be greater than or equal to lower bound; "
                f"lower {BOUND}{{N:2}}, upper {BOUND}{{N:1}}"
            ),
        ),
        (
            "a BETWEEN :a AND :s",
            (
                f"{BETWEEN}same data type for lower and upper bounds; "
                f"lower {BOUND}{{N:1}}, upper {BOUND}{{S:x}}"
            ),
        ),
        (
            f"a{'.b' * 32} = :a",
            "The document path has too many nesting levels; nesting levels: 33",
        ),
        (
            f"a IN ({', '.join([':a'] * 101)})",
            "The IN operator is provided with too many operands; number of operands: 101",
        ),
        # What an expression says is told before what its placeholders stand for.
        (
            "a = :z AND status = :a",
            "Attribute name is a reserved keyword; reserved keyword: status",
        ),
        ("a = :z AND foo(a)", "Invalid function name; function: foo"),
    ],
    ids=lambda text: text[:40],
)
def test_what_is_no_condition_is_refused_in_dynamodbs_words(text: str, said: str) -> None:
    with pytest.raises(InvalidConditionError) as refused:
        parse_condition(text, placeholders(), parameter="FilterExpression")
    assert str(refused.value) == f"Invalid FilterExpression: {said}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "The expression can not be empty;"),
        ("a = :a", 'Syntax error; token: "a", near: "a ="'),
        ("SET", 'Syntax error; token: "<EOF>", near: "SET"'),
        ("SET a", 'Syntax error; token: "<EOF>", near: "a"'),
        ("SET a = :a,", 'Syntax error; token: "<EOF>", near: ","'),
        ("SET a = :a + :b + :a", 'Syntax error; token: "+", near: ":b + :a"'),
        ("SET a = (b + :a", 'Syntax error; token: "<EOF>", near: ":a"'),
        ("REMOVE a b", 'Syntax error; token: "b", near: "a b"'),
        ("ADD a b", 'Syntax error; token: "b", near: "a b"'),
        ("SET a = b = :a", 'Syntax error; token: "=", near: "b = :a"'),
        ("SET a = ((b + :a))", "The expression has redundant parentheses;"),
        ("SET status = :a", "Attribute name is a reserved keyword; reserved keyword: status"),
        ("SET a = ttl", "Attribute name is a reserved keyword; reserved keyword: ttl"),
        (
            "SET a = :a SET b = :b",
            'The "SET" section can only be used once in an update expression;',
        ),
        (
            "REMOVE a SET b = :b REMOVE c",
            'The "REMOVE" section can only be used once in an update expression;',
        ),
        ("SET a = f(b)", "Invalid function name; function: f"),
        ("SET a = size(b)", "The function is not allowed in an update expression; function: size"),
        (
            "SET a = list_append(b)",
            f"{COUNT}operator or function: list_append, number of operands: 1",
        ),
        (
            "SET a = :a, a.b = :b",
            f"Two document paths overlap with each other; {REWRITE}path one: [a], path two: [a, b]",
        ),
        (
            "SET a.b[1] = :a REMOVE a.b",
            (
                f"Two document paths overlap with each other; {REWRITE}"
                f"path one: [a, b, [1]], path two: [a, b]"
            ),
        ),
        (
            "ADD a[0] :a REMOVE a.b",
            (
                f"Two document paths conflict with each other; {REWRITE}"
                f"path one: [a, [0]], path two: [a, b]"
            ),
        ),
        (
            "SET #z = :a",
            (
                "An expression attribute name used in the document path is not defined; "
                "attribute name: #z"
            ),
        ),
        (
            "SET a = :z",
            "An expression attribute value used in expression is not defined; attribute value: :z",
        ),
        # Names before values, and the last action first.
        (
            "SET #z = :z, a = :y",
            (
                "An expression attribute name used in the document path is not defined; "
                "attribute name: #z"
            ),
        ),
        (
            "SET a = #z, b = :z",
            (
                "An expression attribute name used in the document path is not defined; "
                "attribute name: #z"
            ),
        ),
        (
            "SET a = :z, b = :y",
            "An expression attribute value used in expression is not defined; attribute value: :y",
        ),
        ("SET a = a + :s", f"{OPERAND}operator or function: +, operand type: S"),
        ("SET a = :l - a", f"{OPERAND}operator or function: -, operand type: L"),
        (
            "SET a = list_append(a, :a)",
            f"{OPERAND}operator or function: list_append, operand type: N",
        ),
        (
            "SET a = if_not_exists(:a, :b)",
            "Operator or function requires a document path; operator or function: if_not_exists",
        ),
        (
            "ADD a :s",
            f"{OPERAND}operator: ADD, operand type: STRING, typeSet: ALLOWED_FOR_ADD_OPERAND",
        ),
        (
            "ADD a :m",
            f"{OPERAND}operator: ADD, operand type: MAP, typeSet: ALLOWED_FOR_ADD_OPERAND",
        ),
        (
            "DELETE a :a",
            f"{OPERAND}operator: DELETE, operand type: NUMBER, typeSet: ALLOWED_FOR_DELETE_OPERAND",
        ),
    ],
)
def test_what_is_no_update_is_refused_in_dynamodbs_words(text: str, said: str) -> None:
    with pytest.raises(InvalidConditionError) as refused:
        parse_update(text, placeholders())
    assert str(refused.value) == f"Invalid UpdateExpression: {said}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "The expression can not be empty;"),
        ("a,", 'Syntax error; token: "<EOF>", near: ","'),
        ("a b", 'Syntax error; token: "b", near: "a b"'),
        (":a", 'Syntax error; token: ":a", near: ":a"'),
        ("a, date", "Attribute name is a reserved keyword; reserved keyword: date"),
        (
            "a[1], a[1].b",
            (
                f"Two document paths overlap with each other; {REWRITE}"
                f"path one: [a, [1]], path two: [a, [1], b]"
            ),
        ),
    ],
)
def test_what_is_no_projection_is_refused_in_dynamodbs_words(text: str, said: str) -> None:
    with pytest.raises(InvalidConditionError) as refused:
        parse_projection(text, placeholders())
    assert str(refused.value) == f"Invalid ProjectionExpression: {said}"


def test_no_reserved_word_is_a_name_in_any_case() -> None:
    assert len(RESERVED) == 573
    for word in RESERVED:
        for name in (word, word.lower(), word.title()):
            with pytest.raises(InvalidConditionError, match=r"reserved keyword|Syntax error"):
                parse_projection(name, Placeholders())
            assert parse_projection("#w", Placeholders({"#w": name})) == ((name,),)


# --- limits ---------------------------------------------------------------------------------------


def test_an_expression_has_4096_bytes_and_no_more() -> None:
    name = "a" * 4092
    assert parse_condition(f"{name}=:ab", Placeholders(None, {":ab": 1})) == attr(name).eq(1)
    for text in (f"{name}b=:ab", "é" * 2048 + "=" * 2):
        with pytest.raises(InvalidConditionError) as refused:
            parse_condition(text, placeholders())
        size = len(text.encode())
        assert str(refused.value) == (
            "Invalid ConditionExpression: Expression size has exceeded the maximum allowed size; "
            f"expression size: {size}"
        )


def test_an_expression_has_300_operators_and_no_more() -> None:
    parse_condition(" AND ".join(["a=:a"] * 150), placeholders())  # 150 + 149
    parse_condition("NOT " + " AND ".join(["a=:a"] * 150), placeholders())
    with pytest.raises(InvalidConditionError) as refused:
        parse_condition(" OR ".join(["a=:a"] * 151), placeholders())
    assert str(refused.value) == (
        "Invalid ConditionExpression: The expression contains too many operators; "
        "operator count: 301"
    )


def test_in_counts_as_one_operator() -> None:
    listed = f"a IN ({','.join([':a'] * 100)})"
    parse_condition(" OR ".join([listed] * 3), placeholders())


@pytest.mark.parametrize(
    "text",
    [
        # As programs write them: one more parenthesis for each condition.
        "(" * 149 + "a=:a" + " AND a=:a)" * 149,
        "a=:a AND (" * 149 + "a=:a" + ")" * 149,
        "NOT (a=:a OR " * 99 + "b=:b" + ")" * 99,
        "NOT " * 299 + "a=:a",
    ],
    ids=["left", "right", "mixed", "not"],
)
def test_what_300_operators_nest_is_read_and_decided(text: str) -> None:
    assert holds(parse_condition(text, placeholders()), {"a": 1, "b": 2}) in {True, False}


@pytest.mark.parametrize(
    "text",
    ["(" * 4096, "NOT " * 1024, "size(" * 819, "(a=:a AND " * 400, "a = " + "(" * 4000],
    ids=["parentheses", "not", "functions", "and", "operands"],
)
def test_no_nesting_overflows_the_stack(text: str) -> None:
    for parse in (parse_condition, parse_update):
        with pytest.raises(InvalidConditionError):
            parse(text, placeholders())
    with pytest.raises(InvalidConditionError):
        parse_update(f"SET a = {'list_append(' * 340}", placeholders())


# --- placeholders ---------------------------------------------------------------------------------


def test_what_no_expression_uses_is_refused() -> None:
    used = Placeholders({"#a": "x", "#b": "y"}, {":a": 1, ":b": 2})
    parse_condition("#a = :a", used)
    with pytest.raises(InvalidConditionError) as refused:
        used.refuse_unused()
    assert str(refused.value) == (
        "Value provided in ExpressionAttributeNames unused in expressions: keys: {#b}"
    )
    parse_projection("#b", used)
    with pytest.raises(InvalidConditionError) as refused:
        used.refuse_unused()
    assert str(refused.value) == (
        "Value provided in ExpressionAttributeValues unused in expressions: keys: {:b}"
    )
    parse_update("SET c = :b", used)
    used.refuse_unused()


N, V = "ExpressionAttributeNames", "ExpressionAttributeValues"


@pytest.mark.parametrize(
    ("names", "values", "said"),
    [
        ({}, None, f"{N} must not be empty"),
        (None, {}, f"{V} must not be empty"),
        ({"a": "x"}, None, f'{N} contains invalid key: Syntax error; key: "a"'),
        ({"#a-b": "x"}, None, f'{N} contains invalid key: Syntax error; key: "#a-b"'),
        ({"#": "x"}, None, f'{N} contains invalid key: Syntax error; key: "#"'),
        (None, {"#a": {"N": "1"}}, f'{V} contains invalid key: Syntax error; key: "#a"'),
        (
            {"#" + "a" * 255: "x"},
            None,
            (
                f"{N} contains invalid key: The expression attribute map contains a key that is "
                f"too long; size of key: 256"
            ),
        ),
        (
            {"#a": ""},
            None,
            f"{N} contains invalid value: Empty attribute name for key #a",
        ),
        (
            None,
            {":a": {"N": "x"}},
            (
                f"{V} contains invalid value: "
                f"The parameter cannot be converted to a numeric value: x for key :a"
            ),
        ),
        (
            None,
            {":a": {}},
            (
                f"{V} contains invalid value: Supplied AttributeValue is empty, must contain "
                f"exactly one of the supported datatypes for key :a"
            ),
        ),
    ],
)
def test_placeholders_that_mean_nothing_are_refused_in_dynamodbs_words(
    names: object, values: object, said: str
) -> None:
    with pytest.raises(InvalidConditionError) as refused:
        Placeholders.of_json(names, values)
    assert str(refused.value) == said


@pytest.mark.parametrize("name", VALUES)
def test_operators_take_the_types_that_have_an_order(name: str) -> None:
    told = refusal(parse_condition, f"a < {name}")
    assert ("Incorrect operand type" in told) is (type_of(VALUES[name]) not in ORDERED)


def test_a_negated_condition_is_one() -> None:
    assert parse_condition("NOT a = :a", placeholders()) == Not(attr("a").eq(1))


def test_a_between_is_one() -> None:
    assert parse_condition("size(a) BETWEEN b AND :b", placeholders()) == Between(
        Size(Attr(("a",))), Attr(("b",)), Literal(2)
    )
