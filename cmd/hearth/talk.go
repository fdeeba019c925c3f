package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
)

// talk is a chat at the terminal: turns from in, answers to out, everything else to err.
type talk struct {
	client     *client
	interrupts <-chan os.Signal // Ctrl-C
	in         io.Reader
	out, err   io.Writer
	request    chatRequest
}

// interrupts delivers Ctrl-C to the caller until stop.
func (a *app) interrupts() (<-chan os.Signal, func()) {
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, os.Interrupt)
	return ch, func() { signal.Stop(ch) }
}

// once answers one prompt.
func (t *talk) once(ctx context.Context, prompt string) error {
	stopped, err := t.turn(ctx, prompt)
	if err == nil && stopped {
		return errInterrupted
	}
	return err
}

const talkHelp = `/bye           leave (also Ctrl-D)
/clear         forget the conversation
/system TEXT   set the system message and start over
"""            begins and ends a message of several lines
Ctrl-C         stops the answer
`

// loop takes turns until the input ends.
func (t *talk) loop(ctx context.Context) error {
	lines := t.lines()
	fmt.Fprintf(t.err, "%s: /help lists the commands, Ctrl-D leaves\n", t.request.Model)
	for {
		fmt.Fprint(t.err, ">>> ")
		text, more, err := t.read(ctx, lines)
		switch {
		case err != nil:
			return err
		case !more:
			fmt.Fprintln(t.err)
			return nil
		case text == "":
			continue
		case text == "/bye" || text == "/exit" || text == "/quit":
			return nil
		case text == "/help" || text == "/?":
			fmt.Fprint(t.err, talkHelp)
			continue
		case text == "/clear":
			t.forget("")
			continue
		case strings.HasPrefix(text, "/system "):
			t.forget(strings.TrimSpace(strings.TrimPrefix(text, "/system ")))
			continue
		case strings.HasPrefix(text, "/") && !strings.Contains(text, " ") && !strings.Contains(text[1:], "/"):
			fmt.Fprintf(t.err, "no such command: %s\n%s", text, talkHelp)
			continue
		}
		if _, err := t.turn(ctx, text); err != nil {
			// A failed turn leaves the chat as it was; the person may shorten it, or wait for the model.
			if ctx.Err() != nil || !survivable(err) {
				return err
			}
			fmt.Fprintf(t.err, "%s\n", oneLine(err.Error()))
		}
	}
}

// survivable errors are the server's answers; a server that is gone ends the chat.
func survivable(err error) bool {
	_, ok := errors.AsType[*apiError](err)
	return ok
}

// forget starts the conversation over, with the given or the present system message.
func (t *talk) forget(system string) {
	var keep []message
	if system != "" {
		keep = []message{{"system", system}}
	} else if len(t.request.Messages) > 0 && t.request.Messages[0].Role == "system" {
		keep = t.request.Messages[:1]
	}
	t.request.Messages = keep
}

// turn asks and streams the answer. Ctrl-C stops it; what came until then stays in the conversation.
func (t *talk) turn(ctx context.Context, prompt string) (stopped bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	watcher := make(chan struct{})
	go func() {
		defer close(watcher)
		select {
		case <-t.interrupts:
			cancel(errInterrupted)
		case <-done:
		}
	}()
	defer func() { close(done); <-watcher; cancel(nil) }()
	r := t.request
	r.Messages = append(r.Messages[:len(r.Messages):len(r.Messages)], message{"user", prompt})
	text, finish, err := t.client.chat(ctx, r, func(s string) error {
		_, err := io.WriteString(t.out, s)
		return err
	})
	if text != "" && !strings.HasSuffix(text, "\n") {
		fmt.Fprintln(t.out)
	}
	if errors.Is(context.Cause(ctx), errInterrupted) {
		err, stopped = nil, true
	}
	if err != nil {
		return false, err
	}
	if finish == "length" && t.request.MaxTokens == 0 {
		fmt.Fprintln(t.err, "(the answer was cut: the context is full; /clear makes room)")
	}
	t.request.Messages = append(r.Messages, message{"assistant", text})
	return stopped, nil
}

// line is one line of input, or its end.
type line struct {
	text string
	err  error
}

// lines reads input in the background, so that a turn can be waited for together with Ctrl-C. The goroutine ends with
// the input, or with the process.
func (t *talk) lines() <-chan line {
	ch := make(chan line)
	go func() {
		defer close(ch)
		s := bufio.NewScanner(t.in)
		s.Buffer(nil, 1<<20)
		for s.Scan() {
			ch <- line{text: s.Text()}
		}
		if s.Err() != nil {
			ch <- line{err: s.Err()}
		}
	}()
	return ch
}

// read takes one message: a line, or several between """. more is false at the end of the input.
func (t *talk) read(ctx context.Context, lines <-chan line) (text string, more bool, err error) {
	var block []string
	open := false
	for {
		select {
		case <-ctx.Done():
			return "", false, ctx.Err()
		case <-t.interrupts:
			if open {
				open, block = false, nil
			}
			fmt.Fprint(t.err, "\n(Ctrl-D or /bye leaves)\n>>> ")
		case l, ok := <-lines:
			if !ok || l.err != nil {
				return "", false, l.err
			}
			rest, quote := strings.CutPrefix(strings.TrimSpace(l.text), `"""`)
			switch {
			case !open && !quote:
				return strings.TrimSpace(l.text), true, nil
			case !open:
				if body, one := strings.CutSuffix(rest, `"""`); one {
					return strings.TrimSpace(body), true, nil
				}
				open, block = true, append(block, rest)
			default:
				body, end := strings.CutSuffix(l.text, `"""`)
				if block = append(block, body); end {
					return strings.TrimSpace(strings.Join(block, "\n")), true, nil
				}
			}
		}
	}
}
