package llama

// #include "shim.h"
import "C"

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"syscall"
)

// ggml_log_level values that records carry.
const (
	ggmlDebug = 1
	ggmlInfo  = 2
	ggmlWarn  = 3
	ggmlError = 4
)

// levelTrace is where ggml's debug lines go: one per tensor of a load.
const levelTrace = slog.LevelDebug - 4

func slogLevel(ggml byte) slog.Level {
	switch ggml {
	case ggmlDebug:
		return levelTrace
	case ggmlWarn:
		return slog.LevelWarn
	case ggmlError:
		return slog.LevelError
	}
	return slog.LevelDebug
}

// logPump moves log records from C to slog. The pipe between them is the
// bounded ring: C writes without blocking and drops when it is full.
type logPump struct {
	w    *os.File
	fd   int // of w; w.Fd would make it blocking again
	done chan struct{}
	once sync.Once
}

// pipeSize is what the pipe is grown to, in bytes, if the kernel allows: a
// load of a large model logs some 200 KiB at once at trace level.
const pipeSize = 1 << 20

func startLog(log *slog.Logger) (*logPump, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("llama: log pipe: %w", err)
	}
	fd := int(w.Fd())
	if err := syscall.SetNonblock(fd, true); err != nil { // Fd made it blocking
		r.Close()
		w.Close()
		return nil, fmt.Errorf("llama: log pipe: %w", err)
	}
	// Best effort: 64 KiB, the default, works too.
	_, _, _ = syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_SETPIPE_SZ, pipeSize)
	lowest := ggmlError
	for lv := ggmlError; lv >= ggmlDebug; lv-- {
		if log.Enabled(context.Background(), slogLevel(byte(lv))) {
			lowest = lv
		}
	}
	var e C.hs_err
	if rc := C.hs_init(C.int(fd), C.int(lowest), &e); rc != C.HS_OK {
		r.Close()
		w.Close()
		return nil, shimError("open", ErrException, rc, &e)
	}
	p := &logPump{w: w, fd: fd, done: make(chan struct{})}
	go p.run(r, log)
	return p, nil
}

func (p *logPump) run(r *os.File, log *slog.Logger) {
	defer close(p.done)
	defer r.Close()
	in := bufio.NewReaderSize(r, 64<<10)
	var head [3]byte
	for {
		if _, err := io.ReadFull(in, head[:]); err != nil {
			return // the write end is closed
		}
		text := make([]byte, binary.LittleEndian.Uint16(head[:]))
		if _, err := io.ReadFull(in, text); err != nil {
			return
		}
		log.Log(context.Background(), slogLevel(head[2]), string(text), "source", "llama.cpp")
	}
}

// stop detaches C from the pipe, if it still writes to this one, and waits
// until every record written so far was logged.
func (p *logPump) stop() {
	p.once.Do(func() {
		C.hs_log_detach(C.int(p.fd))
		p.w.Close()
		<-p.done
	})
}
