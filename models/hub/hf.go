package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"hearth/models"
	"hearth/models/gguf"
)

// hfFile is one GGUF file of a repository.
type hfFile struct {
	name   string
	size   int64  // -1: unknown
	sha256 string // empty: unknown
}

// fetchHF lists the repository, chooses the file (all its parts), and downloads it at the commit that was listed, so
// that parts of one model never come from two versions.
func (h *Hub) fetchHF(ctx context.Context, ref Ref, store *models.Store, p Progress) (fetched, error) {
	if err := h.offline(ref); err != nil {
		return fetched{}, err
	}
	all, commit, err := h.listHF(ctx, ref, p)
	if err != nil {
		return fetched{}, err
	}
	chosen, err := choose(ref, all)
	if err != nil {
		return fetched{}, err
	}
	stage, err := store.Staging()
	if err != nil {
		return fetched{}, err
	}
	// The tag of the name keeps the publisher's spelling, so "q4_k_m" and "Q4_K_M" are one model.
	resolved := ref
	if resolved.File == "" {
		resolved.Quant = tag(chosen[0].name)
	}
	out := fetched{source: resolved.String()}
	out.name, _, _ = resolved.Name()
	dir := filepath.Join(stage, key(ref.Owner+"/"+ref.Repo+"@"+commit))
	for _, f := range chosen {
		if f, err = h.headHF(ctx, ref, commit, f); err != nil {
			return fetched{}, err
		}
		got, err := h.download(ctx, transfer{
			source: ref.String(), url: h.resolveURL(ref, commit, f.name), auth: h.auth(),
			dst: filepath.Join(dir, path.Base(f.name)), size: f.size, sha256: f.sha256,
		}, p)
		if err != nil {
			return fetched{}, err
		}
		out.files = append(out.files, got)
	}
	return out, nil
}

func (h *Hub) auth() string {
	if h.cfg.Token == "" {
		return ""
	}
	return "Bearer " + h.cfg.Token
}

func (h *Hub) resolveURL(ref Ref, commit, file string) string {
	segments := strings.Split(file, "/")
	for i, s := range segments {
		segments[i] = url.PathEscape(s)
	}
	return h.cfg.Endpoint + "/" + ref.Owner + "/" + ref.Repo + "/resolve/" + url.PathEscape(commit) + "/" + strings.Join(segments, "/")
}

// listHF asks the hub for the repository's GGUF files and the commit they belong to.
func (h *Hub) listHF(ctx context.Context, ref Ref, p Progress) ([]hfFile, string, error) {
	rev := orDefault(ref.Revision, "main")
	u := h.cfg.Endpoint + "/api/models/" + ref.Owner + "/" + ref.Repo + "/revision/" + url.PathEscape(rev) + "?blobs=true"
	var body struct {
		SHA      string `json:"sha"`
		Siblings []struct {
			Name string `json:"rfilename"`
			Size *int64 `json:"size"`
			LFS  *struct {
				SHA256 string `json:"sha256"`
				Size   int64  `json:"size"`
			} `json:"lfs"`
		} `json:"siblings"`
	}
	err := h.retry(ctx, ref, p, func() error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, u, nil)
		if err != nil {
			return permanentError{err}
		}
		h.prepare(req, h.auth())
		resp, err := h.do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return statusError(ref.String(), resp)
		}
		const most = 16 << 20 // bytes; the largest listings have a few MB
		return json.NewDecoder(io.LimitReader(resp.Body, most)).Decode(&body)
	})
	if err != nil {
		return nil, "", err
	}
	var files []hfFile
	for _, s := range body.Siblings {
		if !strings.HasSuffix(strings.ToLower(s.Name), ".gguf") || !filepath.IsLocal(s.Name) {
			continue
		}
		f := hfFile{name: s.Name, size: -1}
		if s.Size != nil {
			f.size = *s.Size
		}
		if s.LFS != nil && sha256Pattern.MatchString(s.LFS.SHA256) {
			f.size, f.sha256 = s.LFS.Size, strings.ToLower(s.LFS.SHA256)
		}
		files = append(files, f)
	}
	return files, orDefault(body.SHA, rev), nil
}

// headHF completes size and hash from the headers that the hub sets before it redirects to storage.
func (h *Hub) headHF(ctx context.Context, ref Ref, commit string, f hfFile) (hfFile, error) {
	if f.size >= 0 && f.sha256 != "" {
		return f, nil
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, h.resolveURL(ref, commit, f.name), nil)
	if err != nil {
		return f, err
	}
	h.prepare(req, h.auth())
	c := *h.client
	c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	resp, err := c.Do(req)
	if err != nil {
		return f, &Error{Source: ref.String(), Cause: err}
	}
	resp.Body.Close()
	if resp.StatusCode >= 400 {
		return f, unwrapPermanent(statusError(ref.String(), resp))
	}
	if etag := strings.Trim(strings.TrimPrefix(resp.Header.Get("X-Linked-Etag"), "W/"), `"`); sha256Pattern.MatchString(etag) {
		f.sha256 = strings.ToLower(etag)
	}
	if n, err := strconv.ParseInt(resp.Header.Get("X-Linked-Size"), 10, 64); err == nil && n >= 0 {
		f.size = n
	}
	return f, nil
}

func unwrapPermanent(err error) error {
	if pe, ok := errors.AsType[permanentError](err); ok {
		return pe.error
	}
	return err
}

// retry is for small requests: the same pauses as a download.
func (h *Hub) retry(ctx context.Context, ref Ref, p Progress, fn func() error) error {
	d := &downloader{Hub: h}
	for failures := 1; ; failures++ {
		err := fn()
		if err == nil {
			return nil
		}
		if pe, ok := errors.AsType[permanentError](err); ok {
			return pe.error
		}
		if ctx.Err() != nil {
			return &Error{Source: ref.String(), Reason: "interrupted", Cause: ctx.Err()}
		}
		if failures > h.cfg.Retries {
			return &Error{Source: ref.String(), Reason: fmt.Sprintf("gave up after %d attempts", failures), Cause: err}
		}
		pause := d.pause(failures, err)
		p.Note(fmt.Sprintf("%v; trying again in %s", err, pause.Round(time.Millisecond)))
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// preferred orders quantisations for a repository named without one: the usual trade first.
func preferred() []string { return []string{"Q4_K_M", "Q4_K_S", "Q5_K_M", "Q4_0", "Q6_K", "Q8_0"} }

var projector = regexp.MustCompile(`(?i)(^|[-._/])(mmproj|mtp|imatrix)([-._]|$)`)

// choose picks the wanted model and returns its parts in order.
func choose(ref Ref, all []hfFile) ([]hfFile, error) {
	groups := map[string][]hfFile{} // by name of the first part
	var order []string
	for _, f := range all {
		if projector.MatchString(f.name) && f.name != ref.File {
			continue
		}
		parts, err := gguf.Parts(f.name)
		if err != nil {
			continue
		}
		if groups[parts[0]] == nil {
			order = append(order, parts[0])
		}
		groups[parts[0]] = append(groups[parts[0]], f)
	}
	slices.Sort(order)
	first, err := pick(ref, order)
	if err != nil {
		return nil, err
	}
	got := groups[first]
	slices.SortFunc(got, func(a, b hfFile) int { return strings.Compare(a.name, b.name) })
	if parts, _ := gguf.Parts(first); len(parts) != len(got) {
		return nil, &Error{Source: ref.String(), Kind: ErrNotFound, Reason: fmt.Sprintf("%s has %d of its %d parts", first, len(got), len(parts))}
	}
	return got, nil
}

func pick(ref Ref, names []string) (string, error) {
	if len(names) == 0 {
		return "", &Error{Source: ref.String(), Kind: ErrNoModel, Hint: "look for a repository whose name ends in GGUF"}
	}
	if ref.File != "" {
		parts, err := gguf.Parts(ref.File)
		if err == nil && slices.Contains(names, parts[0]) {
			return parts[0], nil
		}
		return "", &Error{Source: ref.String(), Kind: ErrNotFound, Reason: "no file " + ref.File, Hint: have(names)}
	}
	find := func(quant string) (found []string) {
		for _, n := range names {
			if strings.EqualFold(tag(n), quant) {
				found = append(found, n)
			}
		}
		return found
	}
	if ref.Quant != "" {
		switch f := find(ref.Quant); len(f) {
		case 1:
			return f[0], nil
		case 0:
			return "", &Error{Source: ref.String(), Kind: ErrNotFound, Reason: "no quantisation " + ref.Quant, Hint: have(names)}
		default:
			return "", &Error{Source: ref.String(), Kind: ErrChoice, Reason: strings.Join(f, ", "), Hint: "name the file: hf:OWNER/REPO/FILE"}
		}
	}
	if len(names) == 1 {
		return names[0], nil
	}
	for _, q := range preferred() {
		if f := find(q); len(f) == 1 {
			return f[0], nil
		}
	}
	return "", &Error{Source: ref.String(), Kind: ErrChoice, Reason: "none of them is an obvious choice", Hint: have(names)}
}

// have lists what a repository offers, in one line.
func have(names []string) string {
	tags := make([]string, 0, len(names))
	for _, n := range names {
		tags = append(tags, tag(n))
	}
	const most = 24
	if len(tags) > most {
		tags = append(tags[:most], "...")
	}
	return "it has: " + strings.Join(tags, ", ")
}
