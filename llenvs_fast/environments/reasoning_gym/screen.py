"""Stand-ins for `eval` and sympy's `parse_expr` in the package's scorers, which give model text to both.

They read the same honest answers in the same way: literals, and formulas of numbers, symbols and well-known
functions. Text that is no formula raises as it did before, and the scorer gives it the package's score for wrong
answers. Code, and numbers too large to compute with, are refused with a reason and never evaluated.
"""

from __future__ import annotations

import ast
import builtins
import math
from typing import Any

import sympy
from sympy.parsing.sympy_parser import standard_transformations, stringify_expr

from llenvs_fast.environments.sandbox.guard import refuse

MAX_FORMULA_CHARS = 4000
MAX_NUMBER_DIGITS = 10_000
MAX_EXPONENT = 10_000
MAX_FACTORIAL = 1000

_CODE = (
    ast.Attribute, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Await, ast.Yield,
    ast.YieldFrom, ast.NamedExpr, ast.JoinedStr,
)  # fmt: skip
_FUNCTIONS = frozenset({
    "sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos", "atan", "acot", "asec", "acsc", "atan2", "sinh",
    "cosh", "tanh", "coth", "asinh", "acosh", "atanh", "acoth", "exp", "log", "ln", "sqrt", "cbrt", "root", "Abs",
    "abs", "sign", "floor", "ceiling", "erf", "erfi", "Max", "Min", "max", "min", "Rational",
})  # fmt: skip
_CONSTANTS = frozenset({"pi", "E", "I", "oo", "zoo", "nan"})
_MAKERS = frozenset({"Integer", "Float", "Symbol", "Function", "factorial"})  # what the tokenizer writes for literals
# what `parse_expr` knows, so that the same words become symbols here and there
_KNOWN_NAMES: dict[str, Any] = {
    **{name: getattr(sympy, name) for name in sympy.__all__},
    **{name: value for name, value in vars(builtins).items() if callable(value)},
    "max": sympy.Max, "min": sympy.Min,
}
_FORMULA_NAMES = {name: _KNOWN_NAMES[name] for name in _FUNCTIONS | _CONSTANTS | _MAKERS}
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.Mod, ast.FloorDiv, ast.UAdd, ast.USub)


def read_literal(text: str) -> Any:
    """Stands in for `eval`: the Python literal that `text` spells.

    Raises what `eval` would: SyntaxError, NameError for a word that is no built-in name, ValueError for other text.
    """
    tree = ast.parse(text.strip(), mode="eval")
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    assigned = {name.id for name in names if isinstance(name.ctx, ast.Store)}
    for name in names:
        if name.id not in vars(builtins) and name.id not in assigned:
            raise NameError(f"name {name.id!r} is not defined")
    _refuse_code(tree, (*_CODE, ast.Call))
    return ast.literal_eval(tree)


def read_formula(text: str, local_dict: dict[str, Any] | None = None) -> Any:
    """Stands in for `sympy.parse_expr`: the expression that `text` spells. Raises like it where there is none."""
    if len(text) > MAX_FORMULA_CHARS:
        refuse(f"answer is a formula of {len(text):,} characters; {MAX_FORMULA_CHARS:,} are read")
    local_dict = dict(local_dict or {})
    code = stringify_expr(text, local_dict, _KNOWN_NAMES, standard_transformations)
    tree = ast.parse(code, mode="eval")
    _refuse_code(tree, _CODE)
    _check(tree.body, local_dict)
    if _digits(tree.body) > MAX_NUMBER_DIGITS:
        refuse(f"answer has a number of more than {MAX_NUMBER_DIGITS:,} digits")
    return eval(compile(tree, "answer", "eval"), {"__builtins__": {}, **_FORMULA_NAMES}, local_dict)


def _refuse_code(tree: ast.AST, kinds: tuple[type[ast.AST], ...]) -> None:
    for node in ast.walk(tree):
        if isinstance(node, kinds):
            refuse(f"answer is code ({type(node).__name__}), which is not run")


def _check(node: ast.expr, symbols: dict[str, Any]) -> None:
    """Raise for anything but a formula: RefusedError for calls of other functions, ValueError for the rest."""
    match node:
        case ast.BinOp(left=left, op=op, right=right) if isinstance(op, _OPERATORS):
            _check(left, symbols)
            _check(right, symbols)
        case ast.UnaryOp(op=op, operand=operand) if isinstance(op, _OPERATORS):
            _check(operand, symbols)
        case ast.Name(id=name) if name in _CONSTANTS or name in symbols:
            pass
        case ast.Call(func=ast.Name(id=("Integer" | "Float" | "Symbol")), args=[ast.Constant()], keywords=[]):
            pass
        case ast.Call(func=ast.Name(id="factorial"), args=[argument], keywords=[]):
            _check(argument, symbols)
            if not (_is_symbol(argument) or 0 <= _integer(argument) <= MAX_FACTORIAL):
                refuse(f"answer takes the factorial of something other than a number up to {MAX_FACTORIAL:,}")
        case ast.Call(func=function, args=args, keywords=[]) if _is_known(function):
            for argument in args:
                _check(argument, symbols)
        case ast.Call():
            refuse(f"answer calls {ast.unparse(node.func)[:60]}, which is not run")
        case _:
            raise ValueError(f"not part of a formula: {ast.unparse(node)[:60]}")


def _is_known(function: ast.expr) -> bool:
    """A function of the list, or a new symbol's name before a bracket, for which the tokenizer writes Function('f')."""
    match function:
        case ast.Name(id=name):
            return name in _FUNCTIONS
        case ast.Call(func=ast.Name(id="Function"), args=[ast.Constant()], keywords=[]):
            return True
    return False


def _is_symbol(node: ast.expr) -> bool:
    match node:
        case ast.Name() | ast.Call(func=ast.Name(id="Symbol")):
            return True
    return False


def _integer(node: ast.expr) -> int:
    match node:
        case ast.Call(func=ast.Name(id="Integer"), args=[ast.Constant(value=int(value))]):
            return value
    return -1


def _digits(node: ast.expr) -> float:
    """An upper bound, in decimal digits, of the numbers that come up in computing a formula. Symbols count as 1.

    Refuses exponents beyond MAX_EXPONENT.
    """
    match node:
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            exponent = _digits(right)
            if exponent > math.log10(MAX_EXPONENT):
                refuse(f"answer has an exponent over {MAX_EXPONENT:,}")
            return _digits(left) * 10**exponent
        case ast.BinOp(left=left, op=(ast.Add() | ast.Sub()), right=right):
            return max(_digits(left), _digits(right)) + math.log10(2)
        case ast.BinOp(left=left, right=right):
            return _digits(left) + _digits(right)
        case ast.UnaryOp(operand=operand):
            return _digits(operand)
        case ast.Call(func=ast.Name(id=("Integer" | "Float")), args=[ast.Constant(value=value)]):
            return _digits_of(value)
        case ast.Call(func=ast.Name(id="factorial"), args=[argument]):
            return math.lgamma(max(_integer(argument), 0) + 1) / math.log(10)
        case ast.Call(args=args):
            return max((_digits(argument) for argument in args if not isinstance(argument, ast.Constant)), default=0.0)
    return 0.0


def _digits_of(literal: Any) -> float:
    """log10 of an Integer's number or of a Float's text, at least 0; a tiny number counts as its reciprocal."""
    if isinstance(literal, int):
        return max(0.0, (literal.bit_length() - 1) * math.log10(2))
    mantissa, _, exponent = str(literal).lower().partition("e")
    return len(mantissa) + abs(int(exponent or 0))
