//! A copy of a template's syntax tree in which everything that can grow is metered.
//!
//! The copy calls functions whose names no template can spell (see [`ADD`] and its neighbours; `builtins` defines
//! them). It also keeps the engine's compiler from computing constant expressions, which it would do without any limit.
//! Statements about other templates and argument unpacking are refused: chat templates have no use for them.

use minijinja::Value;
use minijinja::machinery::Span;
use minijinja::machinery::ast::{self, BinOpKind, CallArg, Expr, Spanned, Stmt};

use crate::text::error::TextError;

/// Pays for a new value.
pub(super) const ADMIT: &str = "=";
/// Pays for a value that goes into a namespace.
pub(super) const ADMIT_TO_NAMESPACE: &str = ".=";
/// Pays for looking at a value.
pub(super) const LOOK: &str = "?";
/// Pays for reading all of a value.
pub(super) const READ: &str = "??";
/// `a + b`
pub(super) const ADD: &str = "+";
/// `a * b`
pub(super) const MULTIPLY: &str = "*";
/// `a ~ b`
pub(super) const CONCAT: &str = "~";
/// `a[b:c:d]`
pub(super) const SLICE: &str = "[:]";

/// Deepest tree. The compiler descends it on the stack, and does so twice for each level.
const MAX_DEPTH: usize = 300;

/// The tree of a template with meters in it.
pub(super) fn metered<'s>(tree: &Stmt<'s>) -> Result<Stmt<'s>, TextError> {
    Rewriter { depth: 0 }.stmt(tree)
}

/// `source` with the tags of transformers' `generation` block, which mark the assistant's words for training, turned into
/// a condition that always holds. White space control keeps its meaning.
pub(super) fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start + 2);
        out.push_str(before);
        let body = tag.trim_start_matches(['-', '+']).trim_start();
        let skipped = &tag[..tag.len() - body.len()];
        let word_end = body.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let (word, after) = body.split_at(word_end.unwrap_or(body.len()));
        let ends = after.trim_start().trim_start_matches(['-', '+']).starts_with("%}");
        out.push_str(skipped);
        out.push_str(match word {
            "generation" if ends => "if true",
            "endgeneration" if ends => "endif",
            _ => word,
        });
        rest = after;
    }
    out.push_str(rest);
    out
}

struct Rewriter {
    depth: usize,
}

impl Rewriter {
    /// Runs `f` one level further down.
    fn deeper<T>(
        &mut self,
        span: Span,
        f: impl FnOnce(&mut Self) -> Result<T, TextError>,
    ) -> Result<T, TextError> {
        if self.depth == MAX_DEPTH {
            return refused(span, "the template is nested too deeply");
        }
        self.depth += 1;
        let result = f(self);
        self.depth -= 1;
        result
    }

    fn body<'s>(&mut self, stmts: &[Stmt<'s>]) -> Result<Vec<Stmt<'s>>, TextError> {
        stmts.iter().map(|stmt| self.stmt(stmt)).collect()
    }

    fn stmt<'s>(&mut self, stmt: &Stmt<'s>) -> Result<Stmt<'s>, TextError> {
        self.deeper(span_of(stmt), |this| this.stmt_here(stmt))
    }

    fn stmt_here<'s>(&mut self, stmt: &Stmt<'s>) -> Result<Stmt<'s>, TextError> {
        Ok(match stmt {
            Stmt::Template(s) => Stmt::Template(Spanned::new(
                ast::Template { children: self.body(&s.children)? },
                s.span(),
            )),
            Stmt::EmitExpr(s) => {
                let expr = self.expr(&s.expr)?;
                Stmt::EmitExpr(Spanned::new(ast::EmitExpr { expr }, s.span()))
            }
            // Raw text would bypass the formatter and with it the meter.
            Stmt::EmitRaw(s) => {
                let expr = constant(Value::from(s.raw), s.span());
                Stmt::EmitExpr(Spanned::new(ast::EmitExpr { expr }, s.span()))
            }
            Stmt::ForLoop(s) => Stmt::ForLoop(Spanned::new(
                ast::ForLoop {
                    target: self.target(&s.target)?,
                    iter: self.call_on(LOOK, &s.iter)?,
                    filter_expr: self.optional(s.filter_expr.as_ref())?,
                    recursive: s.recursive,
                    body: self.body(&s.body)?,
                    else_body: self.body(&s.else_body)?,
                },
                s.span(),
            )),
            Stmt::IfCond(s) => Stmt::IfCond(Spanned::new(
                ast::IfCond {
                    expr: self.expr(&s.expr)?,
                    true_body: self.body(&s.true_body)?,
                    false_body: self.body(&s.false_body)?,
                },
                s.span(),
            )),
            Stmt::WithBlock(s) => {
                let mut assignments = Vec::with_capacity(s.assignments.len());
                for (target, value) in &s.assignments {
                    assignments.push((self.target(target)?, self.expr(value)?));
                }
                let body = self.body(&s.body)?;
                Stmt::WithBlock(Spanned::new(ast::WithBlock { assignments, body }, s.span()))
            }
            Stmt::Set(s) => {
                let expr = match &s.target {
                    Expr::GetAttr(_) => self.call_on(ADMIT_TO_NAMESPACE, &s.expr)?,
                    _ => self.expr(&s.expr)?,
                };
                let target = self.target(&s.target)?;
                Stmt::Set(Spanned::new(ast::Set { target, expr }, s.span()))
            }
            Stmt::SetBlock(s) => Stmt::SetBlock(Spanned::new(
                ast::SetBlock {
                    target: self.target(&s.target)?,
                    filter: self.optional(s.filter.as_ref())?,
                    body: self.body(&s.body)?,
                },
                s.span(),
            )),
            Stmt::AutoEscape(s) => return refused(s.span(), "autoescape is not supported"),
            Stmt::FilterBlock(s) => Stmt::FilterBlock(Spanned::new(
                ast::FilterBlock { filter: self.expr(&s.filter)?, body: self.body(&s.body)? },
                s.span(),
            )),
            Stmt::Macro(s) => Stmt::Macro(self.macro_decl(s)?),
            Stmt::CallBlock(s) => Stmt::CallBlock(Spanned::new(
                ast::CallBlock {
                    call: self.call(&s.call)?,
                    macro_decl: self.macro_decl(&s.macro_decl)?,
                },
                s.span(),
            )),
            Stmt::Continue(s) => Stmt::Continue(Spanned::new(ast::Continue, s.span())),
            Stmt::Break(s) => Stmt::Break(Spanned::new(ast::Break, s.span())),
            Stmt::Do(s) => {
                let call = self.call(&s.call)?;
                Stmt::Do(Spanned::new(ast::Do { call }, s.span()))
            }
            Stmt::Block(_)
            | Stmt::Import(_)
            | Stmt::FromImport(_)
            | Stmt::Extends(_)
            | Stmt::Include(_) => {
                return refused(span_of(stmt), "a chat template stands alone");
            }
        })
    }

    fn macro_decl<'s>(
        &mut self,
        decl: &Spanned<ast::Macro<'s>>,
    ) -> Result<Spanned<ast::Macro<'s>>, TextError> {
        let copy = ast::Macro {
            name: decl.name,
            args: decl.args.iter().map(|arg| self.target(arg)).collect::<Result<_, _>>()?,
            defaults: self.exprs(&decl.defaults)?,
            body: self.body(&decl.body)?,
        };
        Ok(Spanned::new(copy, decl.span()))
    }

    /// What is assigned to: names, lists of names, and attributes of namespaces.
    fn target<'s>(&mut self, target: &Expr<'s>) -> Result<Expr<'s>, TextError> {
        let span = target.span();
        self.deeper(span, |this| {
            let targets = |this: &mut Self, items: &[Expr<'s>]| {
                items.iter().map(|item| this.target(item)).collect::<Result<Vec<_>, _>>()
            };
            Ok(match target {
                Expr::List(list) => {
                    let items = targets(this, &list.items)?;
                    Expr::List(Spanned::new(ast::List { items }, span))
                }
                Expr::Tuple(tuple) => {
                    let items = targets(this, &tuple.items)?;
                    Expr::Tuple(Spanned::new(ast::Tuple { items }, span))
                }
                other => this.expr_here(other)?,
            })
        })
    }

    fn exprs<'s>(&mut self, exprs: &[Expr<'s>]) -> Result<Vec<Expr<'s>>, TextError> {
        exprs.iter().map(|expr| self.expr(expr)).collect()
    }

    fn optional<'s>(&mut self, expr: Option<&Expr<'s>>) -> Result<Option<Expr<'s>>, TextError> {
        expr.map(|expr| self.expr(expr)).transpose()
    }

    /// The copy of `expr`, passed through a metering function. Constants are as short as the template.
    fn call_on<'s>(&mut self, name: &'static str, expr: &Expr<'s>) -> Result<Expr<'s>, TextError> {
        let copy = self.expr(expr)?;
        Ok(match copy {
            Expr::Const(_) => copy,
            _ => call(name, vec![copy], expr.span()),
        })
    }

    fn expr<'s>(&mut self, expr: &Expr<'s>) -> Result<Expr<'s>, TextError> {
        self.deeper(expr.span(), |this| this.expr_here(expr))
    }

    fn expr_here<'s>(&mut self, expr: &Expr<'s>) -> Result<Expr<'s>, TextError> {
        let span = expr.span();
        Ok(match expr {
            Expr::Var(var) => Expr::Var(Spanned::new(ast::Var { id: var.id }, span)),
            Expr::Const(value) => constant(value.value.clone(), span),
            Expr::Slice(s) => {
                let mut args = vec![self.expr(&s.expr)?];
                for bound in [&s.start, &s.stop, &s.step] {
                    args.push(match bound {
                        Some(bound) => self.expr(bound)?,
                        None => constant(Value::from(()), span),
                    });
                }
                call(SLICE, args, span)
            }
            Expr::UnaryOp(op) => {
                let kind = match &op.op {
                    ast::UnaryOpKind::Not => ast::UnaryOpKind::Not,
                    ast::UnaryOpKind::Neg => ast::UnaryOpKind::Neg,
                };
                let expr = self.expr(&op.expr)?;
                Expr::UnaryOp(Spanned::new(ast::UnaryOp { op: kind, expr }, span))
            }
            Expr::BinOp(op) => self.bin_op(op, span)?,
            Expr::Compare(compare) => {
                let first = self.call_on(READ, &compare.expr)?;
                let mut ops = Vec::with_capacity(compare.ops.len());
                for part in &compare.ops {
                    let expr = self.call_on(READ, &part.expr)?;
                    ops.push(ast::CompareOp { op: part.op, expr });
                }
                Expr::Compare(Spanned::new(ast::Compare { expr: first, ops }, span))
            }
            Expr::IfExpr(s) => Expr::IfExpr(Spanned::new(
                ast::IfExpr {
                    test_expr: self.expr(&s.test_expr)?,
                    true_expr: self.expr(&s.true_expr)?,
                    false_expr: self.optional(s.false_expr.as_ref())?,
                },
                span,
            )),
            Expr::Filter(filter) => Expr::Filter(Spanned::new(
                ast::Filter {
                    name: filter.name,
                    expr: self.optional(filter.expr.as_ref())?,
                    args: self.args(&filter.args, span)?,
                },
                span,
            )),
            Expr::Test(test) => Expr::Test(Spanned::new(
                ast::Test {
                    name: test.name,
                    expr: self.expr(&test.expr)?,
                    args: self.args(&test.args, span)?,
                },
                span,
            )),
            Expr::GetAttr(attr) => {
                let (expr, name) = (self.expr(&attr.expr)?, attr.name);
                Expr::GetAttr(Spanned::new(ast::GetAttr { expr, name }, span))
            }
            Expr::GetItem(item) => Expr::GetItem(Spanned::new(
                ast::GetItem {
                    expr: self.call_on(LOOK, &item.expr)?,
                    subscript_expr: self.expr(&item.subscript_expr)?,
                },
                span,
            )),
            Expr::Call(it) => Expr::Call(self.call(it)?),
            Expr::List(list) => {
                let items = self.exprs(&list.items)?;
                let list = Expr::List(Spanned::new(ast::List { items }, span));
                call(ADMIT, vec![list], span)
            }
            Expr::Tuple(tuple) => {
                let items = self.exprs(&tuple.items)?;
                let tuple = Expr::Tuple(Spanned::new(ast::Tuple { items }, span));
                call(ADMIT, vec![tuple], span)
            }
            Expr::Map(map) => {
                let keys = self.exprs(&map.keys)?;
                let values = self.exprs(&map.values)?;
                let map = Expr::Map(Spanned::new(ast::Map { keys, values }, span));
                call(ADMIT, vec![map], span)
            }
        })
    }

    fn bin_op<'s>(
        &mut self,
        op: &Spanned<ast::BinOp<'s>>,
        span: Span,
    ) -> Result<Expr<'s>, TextError> {
        let function = match op.op {
            BinOpKind::Add => Some(ADD),
            BinOpKind::Mul => Some(MULTIPLY),
            BinOpKind::Concat => Some(CONCAT),
            _ => None,
        };
        if let Some(name) = function {
            let args = vec![self.expr(&op.left)?, self.expr(&op.right)?];
            return Ok(call(name, args, span));
        }
        let compares = matches!(
            op.op,
            BinOpKind::Eq
                | BinOpKind::Ne
                | BinOpKind::Lt
                | BinOpKind::Lte
                | BinOpKind::Gt
                | BinOpKind::Gte
                | BinOpKind::In
        );
        let (left, right) = match compares {
            true => (self.call_on(READ, &op.left)?, self.call_on(READ, &op.right)?),
            false => (self.expr(&op.left)?, self.expr(&op.right)?),
        };
        let op = ast::BinOp { op: op.op, left, right };
        Ok(Expr::BinOp(Spanned::new(op, span)))
    }

    fn call<'s>(
        &mut self,
        it: &Spanned<ast::Call<'s>>,
    ) -> Result<Spanned<ast::Call<'s>>, TextError> {
        let copy = ast::Call { expr: self.expr(&it.expr)?, args: self.args(&it.args, it.span())? };
        Ok(Spanned::new(copy, it.span()))
    }

    fn args<'s>(
        &mut self,
        args: &[CallArg<'s>],
        span: Span,
    ) -> Result<Vec<CallArg<'s>>, TextError> {
        args.iter()
            .map(|arg| match arg {
                CallArg::Pos(expr) => Ok(CallArg::Pos(self.expr(expr)?)),
                CallArg::Kwarg(name, expr) => Ok(CallArg::Kwarg(name, self.expr(expr)?)),
                CallArg::PosSplat(_) | CallArg::KwargSplat(_) => {
                    refused(span, "unpacking arguments is not supported")
                }
            })
            .collect()
    }
}

fn call<'s>(name: &'static str, args: Vec<Expr<'s>>, span: Span) -> Expr<'s> {
    let call = ast::Call {
        expr: Expr::Var(Spanned::new(ast::Var { id: name }, span)),
        args: args.into_iter().map(CallArg::Pos).collect(),
    };
    Expr::Call(Spanned::new(call, span))
}

fn constant<'s>(value: Value, span: Span) -> Expr<'s> {
    Expr::Const(Spanned::new(ast::Const { value }, span))
}

fn refused<T>(span: Span, message: &str) -> Result<T, TextError> {
    Err(TextError::TemplateSyntax {
        line: usize::from(span.start_line),
        message: message.to_owned(),
    })
}

fn span_of(stmt: &Stmt<'_>) -> Span {
    match stmt {
        Stmt::Template(s) => s.span(),
        Stmt::EmitExpr(s) => s.span(),
        Stmt::EmitRaw(s) => s.span(),
        Stmt::ForLoop(s) => s.span(),
        Stmt::IfCond(s) => s.span(),
        Stmt::WithBlock(s) => s.span(),
        Stmt::Set(s) => s.span(),
        Stmt::SetBlock(s) => s.span(),
        Stmt::AutoEscape(s) => s.span(),
        Stmt::FilterBlock(s) => s.span(),
        Stmt::Block(s) => s.span(),
        Stmt::Import(s) => s.span(),
        Stmt::FromImport(s) => s.span(),
        Stmt::Extends(s) => s.span(),
        Stmt::Include(s) => s.span(),
        Stmt::Macro(s) => s.span(),
        Stmt::CallBlock(s) => s.span(),
        Stmt::Continue(s) => s.span(),
        Stmt::Break(s) => s.span(),
        Stmt::Do(s) => s.span(),
    }
}

#[cfg(test)]
mod tests {
    use super::without_generation_tags;

    #[test]
    fn generation_tags_become_conditions() {
        for (source, expected) in [
            ("a{% generation %}b{% endgeneration %}c", "a{% if true %}b{% endif %}c"),
            ("{%- generation -%}b{%-endgeneration+%}", "{%- if true -%}b{%-endif+%}"),
            ("{% generations %}{% if generation %}", "{% generations %}{% if generation %}"),
            ("{% generation", "{% generation"),
            ("{%", "{%"),
            ("a {{ '{% x' }} b", "a {{ '{% x' }} b"),
        ] {
            assert_eq!(without_generation_tags(source), expected);
        }
    }
}
