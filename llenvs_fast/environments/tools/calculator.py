"""The tool `calculator`: arithmetic, read with `ast` and never evaluated as code.

Whatever a model writes takes little time and memory: texts, nesting, exponents and results are bounded.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable
from typing import Any

from llenvs_fast.core.tools import ToolDefinition, ToolParameter, ToolParameterType
from llenvs_fast.environments.tools.tool import Tool, ToolError

MAX_EXPRESSION_CHARS = 1000
MAX_NESTING = 50
MAX_DIGITS = 1000

_MAX_BITS = int(MAX_DIGITS * math.log2(10))
_WHOLE_BELOW = 1e16  # where floats begin to be written with an exponent, and no longer hold every whole number
_OTHER_CHARACTERS = re.compile(r"[^0-9eE_.+\-*/%()\s]")
_READABLE = "use numbers, + - * / // % ** and parentheses only"

Number = int | float

CALCULATOR = ToolDefinition(
    name="calculator",
    description="Evaluate an arithmetic expression and return its value.",
    parameters=(ToolParameter("expression", ToolParameterType.STRING, "The expression to evaluate."),),
)


def calculator() -> Tool:
    return Tool(CALCULATOR, lambda arguments: evaluate(arguments["expression"]))


def evaluate(expression: str) -> str:
    """The value of `+ - * / // % **` and parentheses over whole numbers and decimals, as text.

    Whole numbers are exact and print as such, as do quotients that come out whole (6/3 is 2); other values print as
    Python's float. Raises ToolError with a message for the model.
    """
    if len(expression) > MAX_EXPRESSION_CHARS:
        raise ToolError(f"the expression has {len(expression):,} characters: give at most {MAX_EXPRESSION_CHARS:,}")
    if other := _OTHER_CHARACTERS.search(expression):
        raise ToolError(f"can't read {other[0]!r}: {_READABLE}")
    try:
        tree = ast.parse(" ".join(expression.split()), mode="eval").body
    except SyntaxError as error:
        raise ToolError(f"can't read the expression: {error.msg}") from None
    except (MemoryError, RecursionError, ValueError):
        raise ToolError("the expression is nested too deep") from None
    try:
        return _text(_value(tree, 0))
    except ZeroDivisionError:
        raise ToolError("division by zero") from None
    except OverflowError:
        raise ToolError("the result is too large") from None


def _text(value: Number) -> str:
    whole = isinstance(value, int) or (value.is_integer() and abs(value) < _WHOLE_BELOW)
    return str(int(value)) if whole else repr(value)


def _value(node: ast.expr, depth: int) -> Number:
    """A long chain such as 1+2+3+… leans to the left: its spine is walked, and only what is nested goes deeper."""
    if depth > MAX_NESTING:
        raise ToolError(f"the expression is nested more than {MAX_NESTING} deep")
    spine: list[ast.BinOp] = []
    while isinstance(node, ast.BinOp):
        spine.append(node)
        node = node.left
    value = _operand(node, depth)
    for step in reversed(spine):
        value = _checked(_BINARY[type(step.op)](value, _value(step.right, depth + 1)))
    return value


def _operand(node: ast.expr, depth: int) -> Number:
    match node:
        case ast.Constant(value=int(value) | float(value)):
            return _checked(value)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand, depth + 1)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, depth + 1)
    raise ToolError(f"the expression is no arithmetic: {_READABLE}")


def _checked(value: Number) -> Number:
    if isinstance(value, int):
        if value.bit_length() > _MAX_BITS:
            raise ToolError(f"the result has more than {MAX_DIGITS:,} digits")
    elif not math.isfinite(value):
        raise OverflowError
    return value


def _divide(a: Number, b: Number) -> Number:
    exact = isinstance(a, int) and isinstance(b, int) and b and a % b == 0
    return a // b if exact else a / b


def _power(a: Number, b: Number) -> Number:
    if isinstance(a, int) and isinstance(b, int) and b > 0 and a.bit_length() * b > 2 * _MAX_BITS and abs(a) > 1:
        raise ToolError(f"the result has more than {MAX_DIGITS:,} digits")
    if a < 0 and isinstance(b, float) and not b.is_integer():
        raise ToolError("a negative number can't be raised to a fraction")
    power: Number = a**b
    return power


_BINARY: dict[type[ast.operator], Callable[[Any, Any], Number]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: _divide,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
    ast.Pow: _power,
}
