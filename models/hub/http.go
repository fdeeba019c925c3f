package hub

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"path/filepath"
	"strconv"
	"time"

	"hearth/models"
	"hearth/models/gguf"
)

// fetchURL downloads one file, or all parts of a split model when the address names one part.
func (h *Hub) fetchURL(ctx context.Context, ref Ref, store *models.Store, p Progress) (fetched, error) {
	if err := h.offline(ref); err != nil {
		return fetched{}, err
	}
	stage, err := store.Staging()
	if err != nil {
		return fetched{}, err
	}
	u, err := url.Parse(ref.URL)
	if err != nil {
		return fetched{}, bad(ref.URL, "is no web address")
	}
	parts, err := gguf.Parts(path.Base(u.Path))
	if err != nil {
		return fetched{}, err
	}
	if len(parts) > 1 && ref.SHA256 != "" {
		return fetched{}, bad(ref.String(), "is a split model; one sha256 cannot stand for all its parts")
	}
	out := fetched{source: ref.String(), name: stem(u.Path)}
	dir := filepath.Join(stage, key(redact(ref.URL)))
	for _, name := range parts {
		pu := *u
		pu.Path = path.Join(path.Dir(u.Path), name)
		f, err := h.download(ctx, transfer{
			source: ref.String(), url: pu.String(), dst: filepath.Join(dir, name), size: -1, sha256: ref.SHA256,
		}, p)
		if err != nil {
			return fetched{}, err
		}
		out.files = append(out.files, f)
	}
	return out, nil
}

// prepare sets the headers of every request.
func (h *Hub) prepare(req *http.Request, auth string) {
	req.Header.Set("User-Agent", h.cfg.UserAgent)
	req.Header.Set("Accept-Encoding", "identity")
	if auth != "" {
		req.Header.Set("Authorization", auth)
	}
}

// do follows redirects, but takes Authorization along only within the first host: storage hosts get signed addresses and
// must not see the token. A redirect from https to http is refused.
func (h *Hub) do(req *http.Request) (*http.Response, error) {
	c := *h.client
	c.CheckRedirect = func(next *http.Request, via []*http.Request) error {
		switch {
		case len(via) >= 10:
			return errors.New("more than 10 redirects")
		case via[0].URL.Scheme == "https" && next.URL.Scheme != "https":
			return fmt.Errorf("refusing the redirect to unencrypted %s", redact(next.URL.String()))
		case next.URL.Host != via[0].URL.Host:
			next.Header.Del("Authorization")
		}
		return nil
	}
	resp, err := c.Do(req)
	if err == nil {
		return resp, nil
	}
	// url.Error spells the address with its query, which may be signed.
	if ue, ok := errors.AsType[*url.Error](err); ok {
		err = ue.Err
	}
	if cause := context.Cause(req.Context()); cause != nil {
		err = cause
	}
	return nil, fmt.Errorf("%s: %w", req.URL.Host, err)
}

// statusError classifies a refused request: permanent, or worth a retry after the time the server names.
func statusError(source string, resp *http.Response) error {
	e := &Error{Source: source, Reason: "the server says " + resp.Status}
	code := resp.Header.Get("X-Error-Code") // the Hugging Face hub's
	switch {
	case code == "RepoNotFound" || code == "EntryNotFound" || code == "RevisionNotFound" || resp.StatusCode == http.StatusNotFound:
		e.Kind, e.Hint = ErrNotFound, "check the spelling; a private repository needs HF_TOKEN"
	case resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden || code == "GatedRepo":
		e.Kind, e.Hint = ErrGated, "accept the model's terms on its page, then set HF_TOKEN to a token with read access"
	case resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusRequestTimeout || resp.StatusCode >= 500:
		if after := retryAfter(resp.Header.Get("Retry-After")); after > 0 {
			return waitError{e, after}
		}
		return e
	}
	return permanentError{e}
}

// retryAfter reads the header's seconds; its date form is left to the usual pause.
func retryAfter(s string) time.Duration {
	n, err := strconv.Atoi(s)
	if err != nil || n <= 0 {
		return 0
	}
	return time.Duration(n) * time.Second
}
