package supervisor

import (
	"bytes"
	"log/slog"
	"strconv"
	"strings"
	"sync"

	"hearth/engine/enginepb"
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

// stdout is the io.Writer behind a worker's stdout: it delivers the first line, then notes, and logs the rest.
type stdout struct {
	rest *tail
	note func(ids []uint64, working bool)
	line chan string // buffered, one line

	mu   sync.Mutex
	buf  []byte // an unfinished line
	sent bool   // the first line was delivered
}

// maxLine bounds a line, in bytes: an admission of MaxSequences requests has at most 256 ids of 20 digits.
const maxLine = 8 << 10

func newStdout(rest *tail, note func([]uint64, bool)) *stdout {
	return &stdout{rest: rest, note: note, line: make(chan string, 1)}
}

// Write takes lines apart; one longer than maxLine is cut there.
func (s *stdout) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.buf = append(s.buf, p...)
	for {
		line, rest, ok := bytes.Cut(s.buf, []byte{'\n'})
		if !ok && len(line) <= maxLine {
			return len(p), nil
		}
		if !ok {
			line, rest = line[:maxLine], line[maxLine:]
		}
		s.take(string(line))
		s.buf = append([]byte(nil), rest...)
	}
}

// take handles one line. Callers hold s.mu.
func (s *stdout) take(line string) {
	if !s.sent {
		s.sent = true
		s.line <- line
		return
	}
	list, working := strings.CutPrefix(line, enginepb.AdmittedPrefix)
	ok := working
	if !ok {
		list, ok = strings.CutPrefix(line, enginepb.QueuedPrefix)
	}
	var ids []uint64
	for f := range strings.FieldsSeq(list) {
		id, err := strconv.ParseUint(f, 10, 64)
		if err != nil {
			ok = false
			break
		}
		ids = append(ids, id)
	}
	if ok {
		s.note(ids, working)
		return
	}
	_, _ = s.rest.Write([]byte(line + "\n"))
}
