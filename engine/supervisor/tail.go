package supervisor

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
)

// tailBytes is how much of a worker's stderr is kept for diagnosis.
const tailBytes = 64 << 10

// tail is an io.Writer that keeps the last tailBytes written to it and logs each whole line at debug.
type tail struct {
	log *slog.Logger

	mu   sync.Mutex
	buf  []byte // the last bytes, between tailBytes and twice that before it is cut
	line []byte // an unfinished line
}

// Write never fails and never blocks on anything but the logger.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	t.buf = append(t.buf, p...)
	if n := len(t.buf); n > 2*tailBytes {
		t.buf = append(t.buf[:0], t.buf[n-tailBytes:]...)
	}
	t.line = append(t.line, p...)
	var lines []string
	for {
		line, rest, ok := bytes.Cut(t.line, []byte{'\n'})
		if !ok {
			break
		}
		lines = append(lines, string(bytes.TrimRight(line, "\r")))
		t.line = rest
	}
	if len(t.line) > tailBytes { // a line without end: log it in pieces
		lines = append(lines, string(t.line))
		t.line = nil
	}
	t.mu.Unlock()
	for _, l := range lines {
		if l != "" {
			t.log.Debug("worker stderr", "line", l)
		}
	}
	return len(p), nil
}

// String is what was kept, as valid UTF-8.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.ToValidUTF8(string(t.buf[max(0, len(t.buf)-tailBytes):]), "\uFFFD")
}

// firstLine is an io.Writer that delivers the first line written to it and logs what follows.
type firstLine struct {
	rest *tail

	mu   sync.Mutex
	buf  []byte
	sent bool
	line chan string // buffered, one line
}

func newFirstLine(rest *tail) *firstLine { return &firstLine{rest: rest, line: make(chan string, 1)} }

// Write collects until a newline; a first line longer than 4 KiB is delivered cut.
func (f *firstLine) Write(p []byte) (int, error) {
	f.mu.Lock()
	sent := f.sent
	if !sent {
		f.buf = append(f.buf, p...)
		line, _, ok := bytes.Cut(f.buf, []byte{'\n'})
		if ok || len(f.buf) > 4096 {
			f.sent = true
			f.line <- string(line[:min(len(line), 4096)])
			f.buf = nil
		}
	}
	f.mu.Unlock()
	if sent {
		return f.rest.Write(p)
	}
	return len(p), nil
}
