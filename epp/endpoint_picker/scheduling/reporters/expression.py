"""Expressions over a response's token usage: a part of CEL, the Common Expression Language. Pure.

It has whole numbers, true, false, `usage.FIELD`, `has(usage.FIELD)`, `+ - * / %`, comparisons, `! && ||`,
`a ? b : c` and parentheses. Types are checked when the text is read. As in CEL, division rounds towards zero,
and an evaluation fails that divides by zero or leaves the range of 64 bits.
"""

import operator
import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from ext_proc.body.usage import Usage

#: Longest text of an expression, and deepest nesting: reading one takes a frame or two a level.
MAX_LENGTH: Final = 512
MAX_DEPTH: Final = 32

_LARGEST: Final = 2**63 - 1

#: The fields of `usage`.
FIELDS: Final[Mapping[str, Callable[[Usage], int]]] = {
    "prompt_tokens": lambda usage: usage.input_tokens,
    "completion_tokens": lambda usage: usage.output_tokens,
    "total_tokens": lambda usage: usage.input_tokens + usage.output_tokens,
    "prompt_tokens_details.cached_tokens": lambda usage: usage.cached_tokens,
}

_TOKEN: Final = re.compile(r"\s*(?:(\d+)|([A-Za-z_][\w.]*)|(&&|\|\||[=!<>]=|[-+*/%!<>?:()]))")
#: Operators by how tightly they bind, the loosest first; `?:` is looser than all.
_LEVELS: Final = (("||",), ("&&",), ("==", "!=", "<", "<=", ">", ">="), ("+", "-"), ("*", "/", "%"))
_CONSTANTS: Final[Mapping[str, bool]] = {"true": True, "false": False}
_FUNCTIONS: Final = ("has",)
_COMPARE: Final[Mapping[str, Callable[[int, int], bool]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class EvaluationError(Exception):
    """The expression has no value for this usage."""


class Expression(NamedTuple):
    """An expression that was read."""

    kind: type
    """int or bool."""
    value: Callable[[Usage], int]
    """Raises EvaluationError."""


def expression_of(text: str, kind: type) -> Expression:
    """Return the expression, whose value is of the kind, int or bool. Raises ValueError."""
    found = _Reader(text).whole()
    if found.kind is not kind:
        msg = f'"{text}" is no {_name(kind)}'
        raise ValueError(msg)
    return found


def _name(kind: type) -> str:
    return "condition" if kind is bool else "whole number"


def _ranged(number: int) -> int:
    if not -_LARGEST - 1 <= number <= _LARGEST:
        raise EvaluationError("out of range")
    return number


def _quotient(left: int, right: int) -> int:
    if not right:
        raise EvaluationError("division by zero")
    size = abs(left) // abs(right)
    return size if (left < 0) is (right < 0) else -size


_ARITHMETIC: Final[Mapping[str, Callable[[int, int], int]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _quotient,
    "%": lambda left, right: left - right * _quotient(left, right),
}


class _Reader:
    """Reads one text by recursive descent."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_LENGTH:
            msg = f"an expression has at most {MAX_LENGTH} characters"
            raise ValueError(msg)
        self._text = text
        self._tokens = _tokens(text)
        self._at = 0
        self._depth = 0

    def whole(self) -> Expression:
        """Read the whole text."""
        found = self._choice()
        if self._at < len(self._tokens):
            raise self._fault()
        return found

    def _choice(self) -> Expression:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            msg = f'"{self._text}" is nested too deeply'
            raise ValueError(msg)
        found = self._binary(0)
        if self._take("?"):
            test = self._of(found, bool)
            yes = self._choice()
            self._need(":")
            no = self._of(self._choice(), yes.kind)
            one = yes.value
            found = Expression(yes.kind, lambda usage: one(usage) if test(usage) else no(usage))
        self._depth -= 1
        return found

    def _binary(self, level: int) -> Expression:
        if level == len(_LEVELS):
            return self._unary()
        left = self._binary(level + 1)
        while (sign := self._take(*_LEVELS[level])) is not None:
            left = self._joined(sign, left, self._binary(level + 1))
        return left

    def _joined(self, sign: str, left: Expression, right: Expression) -> Expression:
        if sign in ("&&", "||"):
            one, other = self._of(left, bool), self._of(right, bool)
            if sign == "&&":
                return Expression(bool, lambda usage: one(usage) and other(usage))
            return Expression(bool, lambda usage: one(usage) or other(usage))
        one, other = left.value, self._of(right, left.kind)
        if sign in ("==", "!="):
            same = _COMPARE[sign]
            return Expression(bool, lambda usage: same(one(usage), other(usage)))
        self._of(left, int)
        if sign in _COMPARE:
            compare = _COMPARE[sign]
            return Expression(bool, lambda usage: compare(one(usage), other(usage)))
        reckon = _ARITHMETIC[sign]
        return Expression(int, lambda usage: _ranged(reckon(one(usage), other(usage))))

    def _unary(self) -> Expression:
        negative = None
        signs = 0
        while (sign := self._take("!", "-")) is not None:
            if negative not in (None, sign):
                raise self._fault()
            negative, signs = sign, signs + 1
        found = self._primary()
        if negative is None:
            return found
        inner = self._of(found, bool if negative == "!" else int)
        if signs % 2 == 0:
            return found
        if negative == "!":
            return Expression(bool, lambda usage: not inner(usage))
        return Expression(int, lambda usage: _ranged(-inner(usage)))

    def _primary(self) -> Expression:
        if self._take("(") is not None:
            found = self._choice()
            self._need(")")
            return found
        token = self._next()
        if token.isdigit():
            number = int(token)
            if number > _LARGEST:
                msg = f"{token} is too large"
                raise ValueError(msg)
            return Expression(int, lambda _usage: number)
        if token in _CONSTANTS:
            constant = _CONSTANTS[token]
            return Expression(bool, lambda _usage: constant)
        if token in _FUNCTIONS:
            self._need("(")
            field = self._field(self._next())
            self._need(")")
            return Expression(bool, lambda usage: field(usage) != 0)
        return Expression(int, self._field(token))

    def _field(self, token: str) -> Callable[[Usage], int]:
        root, _, name = token.partition(".")
        if root != "usage":
            raise self._fault(back=1)
        if name not in FIELDS:
            msg = f'usage has no field "{name}"; it has {", ".join(FIELDS)}'
            raise ValueError(msg)
        return FIELDS[name]

    def _of(self, found: Expression, kind: type) -> Callable[[Usage], int]:
        if found.kind is not kind:
            msg = f'"{self._text}" joins a {_name(found.kind)} where a {_name(kind)} is needed'
            raise ValueError(msg)
        return found.value

    def _take(self, *wanted: str) -> str | None:
        if self._at < len(self._tokens) and self._tokens[self._at] in wanted:
            self._at += 1
            return self._tokens[self._at - 1]
        return None

    def _need(self, wanted: str) -> None:
        if self._take(wanted) is None:
            raise self._fault()

    def _next(self) -> str:
        if self._at >= len(self._tokens):
            raise self._fault()
        self._at += 1
        return self._tokens[self._at - 1]

    def _fault(self, back: int = 0) -> ValueError:
        at = self._at - back
        where = f'at "{self._tokens[at]}"' if at < len(self._tokens) else "at its end"
        return ValueError(f'"{self._text}" cannot be read {where}')


def _tokens(text: str) -> list[str]:
    found = []
    at = 0
    end = len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at, end)
        if match is None:
            msg = f'"{text}" cannot be read at "{text[at:].strip()[:20]}"'
            raise ValueError(msg)
        found.append(match[1] or match[2] or match[3])
        at = match.end()
    return found
