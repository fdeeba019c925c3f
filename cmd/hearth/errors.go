package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"hearth/configs"
	"hearth/engine"
	"hearth/models"
	"hearth/models/gguf"
	"hearth/models/hub"
)

// Exit codes; the root command's help explains them.
const (
	exitFailed      = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitUnavailable = 4
	exitInterrupted = 130
)

// errInterrupted is Ctrl-C or SIGTERM before the command was done.
var errInterrupted = errors.New("interrupted")

// usageError is a wrong command line.
type usageError struct{ reason, hint string }

func (e *usageError) Error() string { return e.reason }

// exitError is an exit code without a message: the command has printed all there is to say.
type exitError struct{ code int }

func (e *exitError) Error() string { return fmt.Sprintf("exit code %d", e.code) }

// hintedError adds what to do to any error.
type hintedError struct {
	error
	hint string
	code int
}

func (e *hintedError) Unwrap() error { return e.error }

// report prints an error on one line and its hint on the next, and returns the exit code.
func (a *app) report(err error) int {
	if err == nil {
		return 0
	}
	if e, ok := errors.AsType[*exitError](err); ok {
		return e.code
	}
	if errors.Is(err, errInterrupted) || errors.Is(err, context.Canceled) {
		a.notef("hearth: interrupted\n")
		return exitInterrupted
	}
	code, hint := classify(err)
	a.notef("hearth: %s\n", oneLine(err.Error()))
	if hint != "" {
		a.notef("hint: %s\n", oneLine(hint))
	}
	return code
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// classify finds the exit code and the hint of an error by its type.
func classify(err error) (code int, hint string) {
	if e, ok := errors.AsType[*hintedError](err); ok {
		return e.code, e.hint
	}
	if e, ok := errors.AsType[*usageError](err); ok {
		return exitUsage, e.hint
	}
	if _, ok := errors.AsType[*configs.FieldError](err); ok {
		return exitUsage, "hearth config show lists every setting and where its value is from"
	}
	if e, ok := errors.AsType[*models.NotFoundError](err); ok {
		return exitNotFound, notFoundHint(e)
	}
	if _, ok := errors.AsType[*models.NameError](err); ok {
		return exitUsage, ""
	}
	if _, ok := errors.AsType[*models.ExistsError](err); ok {
		return exitFailed, "choose another name, or remove the old model with hearth rm"
	}
	if e, ok := errors.AsType[*hub.Error](err); ok {
		switch {
		case errors.Is(err, hub.ErrRef):
			return exitUsage, e.Hint
		case errors.Is(err, hub.ErrNotFound):
			return exitNotFound, e.Hint
		}
		return exitFailed, e.Hint
	}
	if errors.Is(err, gguf.ErrTruncated) {
		return exitFailed, "the file is incomplete; fetch or copy it again"
	}
	if e, ok := errors.AsType[*engine.Error](err); ok {
		switch e.Kind {
		case engine.KindNotFound:
			return exitNotFound, e.Hint
		case engine.KindUnavailable, engine.KindOverloaded:
			return exitUnavailable, e.Hint
		}
		return exitFailed, e.Hint
	}
	if errors.Is(err, os.ErrNotExist) {
		return exitNotFound, ""
	}
	if strings.HasPrefix(err.Error(), "unknown command") { // cobra has no type for it
		return exitUsage, "hearth --help lists the commands"
	}
	return exitFailed, ""
}

func notFoundHint(e *models.NotFoundError) string {
	if len(e.Close) > 0 {
		return "did you mean " + strings.Join(e.Close, " or ") + "? hearth list shows the models that are here"
	}
	if _, err := hub.Parse(e.Name); err == nil {
		return fmt.Sprintf("hearth pull %s fetches it", e.Name)
	}
	return "hearth list shows the models that are here, hearth pull fetches more"
}
