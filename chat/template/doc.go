// Package template renders the Jinja chat templates that models carry: messages in, prompt text out.
//
// The evaluator is github.com/ardanlabs/jinja. This package puts around it what a server needs: whitespace control as
// Jinja2 does it, ordered maps, budgets on source size, steps, depth, output and time, knowledge of what a template can
// do (found by rendering small conversations once), conversations brought into the form the template accepts, and marks
// that keep special tokens typed by a user from becoming special tokens.
//
// server calls Compile once per loaded model and Render per request. A Template may be used by any number of goroutines.
//
// # Budgets and what they cannot do
//
// The evaluator has no hooks, so Compile rewrites the template's source (rewrite.go): every loop iteration, macro call,
// assignment and output calls back into this package, which counts and stops the render with an error. A single
// expression without a loop ("x" * 1000000000) cannot be stopped from inside; the caller gets its error when the time
// budget ends, the goroutine runs on until the expression is done, and MaxAbandoned such goroutines are the most there
// can be: then new renders are refused. Templates come from model files that the operator chose; the budgets are
// there for broken ones and for hostile conversations, not as a sandbox for hostile models.
package template
