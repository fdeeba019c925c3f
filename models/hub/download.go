package hub

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/google/renameio/v2"

	"hearth/models"
)

// transfer is one file to download.
type transfer struct {
	source string // for messages
	url    string
	auth   string // Authorization for the URL's own host
	dst    string // the finished file; dst+".part" grows until then
	size   int64  // promised bytes, -1: unknown
	sha256 string // promised, lower-case hex; empty: unknown
}

// state lies beside a partial file and tells whether the rest still belongs to it.
type state struct {
	URL    string `json:"url"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256,omitempty"`
	ETag   string `json:"etag,omitempty"` // of the first response; only strong ones
}

// errRestart asks for the transfer to begin again from byte 0.
var errRestart = errors.New("the server does not continue the transfer")

// permanentError ends a transfer; others are tried again.
type permanentError struct{ error }

func (e permanentError) Unwrap() error { return e.error }

// waitError is a failure with the pause that the server asked for.
type waitError struct {
	error
	after time.Duration
}

func (e waitError) Unwrap() error { return e.error }

type downloader struct {
	*Hub
	t     transfer
	bar   Bar
	out   *os.File
	sum   hash.Hash
	n     int64 // bytes in out, all of them in sum
	state state
}

// download brings one file to t.dst, resuming what an earlier call left, and returns its size and SHA-256.
func (h *Hub) download(ctx context.Context, t transfer, p Progress) (f models.File, err error) {
	bar := p.Bar(filepath.Base(t.dst), t.size)
	defer func() { bar.Done(err) }()
	if err := os.MkdirAll(filepath.Dir(t.dst), 0o755); err != nil {
		return f, fmt.Errorf("create download folder: %w", err)
	}
	d := &downloader{Hub: h, t: t, bar: bar}
	if err := d.open(); err != nil {
		return f, err
	}
	defer d.out.Close()
	if err := room(filepath.Dir(t.dst), t.size-d.n, t.source); err != nil {
		return f, err
	}
	if err := d.fetchAll(ctx, p); err != nil {
		return f, err
	}
	if err := errors.Join(d.out.Sync(), os.Rename(t.dst+".part", t.dst)); err != nil {
		return f, fmt.Errorf("finish download: %w", err)
	}
	os.Remove(t.dst + ".part.json")
	return models.File{Path: t.dst, Size: d.n, SHA256: hex.EncodeToString(d.sum.Sum(nil))}, nil
}

// open takes up a partial file when it is of the same transfer.
func (d *downloader) open() error {
	var err error
	if d.out, err = os.OpenFile(d.t.dst+".part", os.O_CREATE|os.O_RDWR, 0o644); err != nil {
		return fmt.Errorf("open partial download: %w", err)
	}
	d.sum = sha256.New()
	d.state = state{URL: redact(d.t.url), Size: d.t.size, SHA256: d.t.sha256}
	var old state
	if b, err := os.ReadFile(d.t.dst + ".part.json"); err == nil && json.Unmarshal(b, &old) == nil {
		same := old.URL == d.state.URL && old.Size == d.state.Size && old.SHA256 == d.state.SHA256
		if same && (old.SHA256 != "" || old.ETag != "") { // otherwise nothing says that the file did not change
			d.state = old
			if d.n, err = io.Copy(d.sum, d.out); err != nil {
				return fmt.Errorf("read partial download: %w", err)
			}
		}
	}
	if d.n == 0 || d.t.size >= 0 && d.n > d.t.size {
		if err := d.restart(); err != nil {
			return err
		}
	}
	return d.save()
}

func (d *downloader) save() error {
	b, err := json.Marshal(d.state)
	if err != nil {
		return fmt.Errorf("save download state: %w", err)
	}
	if err := renameio.WriteFile(d.t.dst+".part.json", b, 0o644); err != nil {
		return fmt.Errorf("save download state: %w", err)
	}
	return nil
}

func (d *downloader) restart() error {
	d.sum.Reset()
	d.n = 0
	if err := d.out.Truncate(0); err != nil {
		return fmt.Errorf("restart download: %w", err)
	}
	if _, err := d.out.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("restart download: %w", err)
	}
	return nil
}

// fetchAll repeats attempts until the file is whole and its hash is right. Attempts that moved bytes do not count
// against Retries; a wrong hash is worth one more try from the start.
func (d *downloader) fetchAll(ctx context.Context, p Progress) error {
	for failures, wrong := 0, 0; ; {
		before := d.n
		err := d.attempt(ctx)
		if err == nil {
			if err = d.verify(); err == nil {
				return nil
			}
			if wrong++; wrong > 1 {
				os.Remove(d.t.dst + ".part")
				os.Remove(d.t.dst + ".part.json")
				return err
			}
			p.Note(err.Error() + "; fetching it once more")
			if err := d.restart(); err != nil {
				return err
			}
			continue
		}
		if ctx.Err() != nil {
			return &Error{Source: d.t.source, Reason: "interrupted", Cause: ctx.Err(), Hint: "run the same command again to continue"}
		}
		if pe, ok := errors.AsType[permanentError](err); ok {
			return pe.error
		}
		if errors.Is(err, errRestart) {
			if err := d.restart(); err != nil {
				return err
			}
		} else if d.n > before {
			failures = 0
		}
		if failures++; failures > d.cfg.Retries {
			return &Error{Source: d.t.source, Reason: fmt.Sprintf("gave up after %d attempts", failures), Cause: err,
				Hint: "run the same command again to continue"}
		}
		pause := d.pause(failures, err)
		p.Note(fmt.Sprintf("%v; trying again in %s", err, pause.Round(time.Millisecond)))
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// pause doubles with every failure in a row, with a random part so that many clients spread out.
func (d *downloader) pause(failures int, err error) time.Duration {
	if w, ok := errors.AsType[waitError](err); ok {
		return min(w.after, 2*time.Minute)
	}
	base := d.cfg.RetryBase << min(failures-1, 6)
	return base + rand.N(base/2+1)
}

// attempt makes one request for what is missing.
func (d *downloader) attempt(ctx context.Context) error {
	if d.t.size >= 0 && d.n == d.t.size {
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, d.t.url, nil)
	if err != nil {
		return permanentError{err}
	}
	d.prepare(req, d.t.auth)
	if d.n > 0 {
		req.Header.Set("Range", "bytes="+strconv.FormatInt(d.n, 10)+"-")
		if d.state.ETag != "" {
			req.Header.Set("If-Range", d.state.ETag)
		}
	}
	resp, err := d.do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	total, err := d.accept(resp)
	if err != nil {
		return err
	}
	if etag := resp.Header.Get("ETag"); d.n == 0 && etag != d.state.ETag && strings.HasPrefix(etag, `"`) {
		d.state.ETag = etag
		if err := d.save(); err != nil {
			return permanentError{err}
		}
	}
	return d.copy(ctx, resp.Body, total, cancel)
}

// accept decides whether the body continues the file, and says how long the file will be (-1: unknown).
func (d *downloader) accept(resp *http.Response) (total int64, err error) {
	switch resp.StatusCode {
	case http.StatusOK:
		if d.n > 0 {
			if err := d.restart(); err != nil {
				return 0, permanentError{err}
			}
		}
		total = resp.ContentLength
	case http.StatusPartialContent:
		start, all, ok := contentRange(resp.Header.Get("Content-Range"))
		if !ok || start != d.n {
			return 0, fmt.Errorf("%w: asked for byte %d, got %q", errRestart, d.n, resp.Header.Get("Content-Range"))
		}
		total = all
	case http.StatusRequestedRangeNotSatisfiable:
		return 0, fmt.Errorf("%w: status %s", errRestart, resp.Status)
	default:
		return 0, statusError(d.t.source, resp)
	}
	if d.t.size >= 0 && total >= 0 && total != d.t.size {
		return 0, permanentError{&Error{Source: d.t.source, Kind: ErrHash,
			Reason: fmt.Sprintf("the server sends %d bytes, %d were promised", total, d.t.size)}}
	}
	if total < 0 {
		total = d.t.size
	}
	return total, nil
}

// copy appends the body. An attempt that stalls is cancelled.
func (d *downloader) copy(ctx context.Context, body io.Reader, total int64, cancel context.CancelCauseFunc) error {
	stalled := fmt.Errorf("no data for %s", d.cfg.Stall)
	timer := time.AfterFunc(d.cfg.Stall, func() { cancel(stalled) })
	defer timer.Stop()
	buf := make([]byte, 256<<10)
	for {
		n, err := body.Read(buf)
		timer.Reset(d.cfg.Stall)
		if total >= 0 && d.n+int64(n) > total {
			return fmt.Errorf("%w: more than the %d bytes announced", errRestart, total)
		}
		if n > 0 {
			if _, werr := d.out.Write(buf[:n]); werr != nil {
				return permanentError{d.writeFailed(werr)}
			}
			d.sum.Write(buf[:n])
			d.n += int64(n)
			d.bar.Set(d.n, total)
		}
		switch {
		case errors.Is(err, io.EOF) && (total < 0 || d.n == total):
			return nil
		case errors.Is(err, io.EOF):
			return fmt.Errorf("the connection closed after %d of %d bytes", d.n, total)
		case err != nil:
			if cause := context.Cause(ctx); cause != nil {
				err = cause
			}
			return fmt.Errorf("the connection broke after %d bytes: %w", d.n, err)
		}
	}
}

func (d *downloader) writeFailed(err error) error {
	e := &Error{Source: d.t.source, Cause: err}
	if errors.Is(err, syscall.ENOSPC) {
		e.Kind, e.Hint = ErrNoSpace, "free some space and run the same command again to continue"
	}
	return e
}

func (d *downloader) verify() error {
	got := hex.EncodeToString(d.sum.Sum(nil))
	if d.t.sha256 == "" || got == d.t.sha256 {
		return nil
	}
	return &Error{Source: d.t.source, Kind: ErrHash, Reason: fmt.Sprintf("SHA-256 is %s, %s was promised", got, d.t.sha256),
		Hint: "the file changed on its way or at the source; try again later"}
}

// contentRange parses "bytes 5-9/10"; total is -1 for "*".
func contentRange(s string) (start, total int64, ok bool) {
	s, ok = strings.CutPrefix(s, "bytes ")
	span, all, ok2 := strings.Cut(s, "/")
	from, _, ok3 := strings.Cut(span, "-")
	start, err := strconv.ParseInt(from, 10, 64)
	if !ok || !ok2 || !ok3 || err != nil {
		return 0, 0, false
	}
	if all == "*" {
		return start, -1, true
	}
	total, err = strconv.ParseInt(all, 10, 64)
	return start, total, err == nil
}

// room refuses a download that the disk cannot take, before it fills up. need < 0: unknown.
func room(dir string, need int64, source string) error {
	var st syscall.Statfs_t
	if need <= 0 || syscall.Statfs(dir, &st) != nil {
		return nil
	}
	if free := int64(st.Bavail) * st.Bsize; free < need {
		return &Error{Source: source, Kind: ErrNoSpace,
			Reason: fmt.Sprintf("%d MB are needed in %s, %d MB are free", need>>20, dir, free>>20),
			Hint:   "remove a model with hearth rm, or move the store with HEARTH_MODELS"}
	}
	return nil
}
