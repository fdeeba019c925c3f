package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "hearth/"

// source is one parsed Go file.
type source struct {
	path, pkg string // relative to the root
	test      bool
	generated bool
	lines     int
	file      *ast.File
	set       *token.FileSet
}

// sources parses every Go file of the module, whatever its build tags: a rule holds for cgo files on machines without a
// compiler too.
func sources(t *testing.T) []source {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	var out []source
	set := token.NewFileSet()
	err = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			name := d.Name()
			if p != root && (strings.HasPrefix(name, ".") || name == "testdata" || name == "build" || name == "bin" || name == "dist" || name == "node_modules") {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(p, ".go") {
			return nil
		}
		b, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(set, p, b, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		out = append(out, source{
			path: rel, pkg: strings.TrimSuffix(rel[:strings.LastIndex(rel, "/")+1], "/"), test: strings.HasSuffix(rel, "_test.go"),
			generated: ast.IsGenerated(f), lines: strings.Count(string(b), "\n"), file: f, set: set,
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(out) < 50 {
		t.Fatalf("only %d files found below %s", len(out), root)
	}
	return out
}

// matches tests a package against "x", "x/..." or "...".
func matches(pattern, pkg string) bool {
	base, tree := strings.CutSuffix(pattern, "...")
	base = strings.TrimSuffix(base, "/")
	return pkg == base || tree && (base == "" || strings.HasPrefix(pkg, base+"/"))
}

func anyMatches(patterns []string, pkg string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return matches(p, pkg) })
}

func layerOf(pkg string) (layer, bool) {
	for _, l := range layers() {
		if matches(l.pkg, pkg) {
			return l, true
		}
	}
	return layer{}, false
}

func TestImports(t *testing.T) {
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		l, known := layerOf(s.pkg)
		if !known {
			t.Errorf("%s: package %s has no line in the table of layers", s.path, s.pkg)
			continue
		}
		for _, spec := range s.file.Imports {
			path, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			if ours, ok := strings.CutPrefix(path, module); ok {
				if ours != s.pkg && !anyMatches(l.allow, ours) {
					t.Errorf("%s imports %s: %s", s.path, ours, l.why)
				}
				continue
			}
			for _, f := range foreigns() {
				if matches(f.imports, path) && !anyMatches(f.only, s.pkg) {
					t.Errorf("%s imports %s: %s", s.path, path, f.why)
				}
			}
		}
	}
}

// The front end must start on a machine without a C library of the right version, so nothing below it may be cgo of ours.
func TestFrontEndIsPureGo(t *testing.T) {
	cmd := exec.Command("go", "list", "-deps", "./cmd/hearth")
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	for _, dep := range strings.Fields(string(out)) {
		if ours, ok := strings.CutPrefix(dep, module); ok && (matches("engine/llama", ours) || matches("engine/worker/...", ours)) {
			t.Errorf("cmd/hearth depends on %s", ours)
		}
	}
}

func TestSizes(t *testing.T) {
	const maxFile, maxFunc = 800, 120
	exceptions := longFunctions()
	for _, s := range sources(t) {
		if s.generated {
			continue
		}
		if s.lines > maxFile {
			t.Errorf("%s has %d lines, at most %d are allowed", s.path, s.lines, maxFile)
		}
		for _, d := range s.file.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Body == nil {
				continue
			}
			n := s.set.Position(fn.End()).Line - s.set.Position(fn.Pos()).Line + 1
			if name := s.pkg + "." + fn.Name.Name; n > maxFunc && exceptions[name] == "" {
				t.Errorf("%s: %s has %d lines, at most %d are allowed", s.path, name, n, maxFunc)
			}
		}
	}
}

func TestPackagesExplainThemselves(t *testing.T) {
	doc := map[string]bool{}
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		doc[s.pkg] = doc[s.pkg] || s.file.Doc != nil && len(strings.TrimSpace(s.file.Doc.Text())) > 40
	}
	for pkg, ok := range doc {
		if !ok {
			t.Errorf("package %s has no doc comment", pkg)
		}
	}
}

// Reading the environment anywhere would make behaviour depend on what a test cannot see.
func TestEnvironmentIsPassedDown(t *testing.T) {
	allowed := environment()
	for _, s := range sources(t) {
		if s.test || s.pkg == "configs" || allowed[s.path] != "" {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if id, ok := sel.X.(*ast.Ident); ok && id.Name == "os" && slices.Contains([]string{"Getenv", "LookupEnv", "Environ", "ExpandEnv", "Setenv"}, sel.Sel.Name) {
				t.Errorf("%s reads the environment (os.%s); take it as an argument", s.set.Position(n.Pos()), sel.Sel.Name)
			}
			return true
		})
	}
}

func TestNoHiddenState(t *testing.T) {
	allowed := packageVariables()
	for _, s := range sources(t) {
		if s.test || s.generated {
			continue
		}
		for _, d := range s.file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil && d.Name.Name == "init" {
					t.Errorf("%s: init hides work from the caller", s.set.Position(d.Pos()))
				}
			case *ast.GenDecl:
				if d.Tok != token.VAR {
					continue
				}
				for _, spec := range d.Specs {
					v := spec.(*ast.ValueSpec)
					if !constant(d, v) && allowed[s.pkg+"."+v.Names[0].Name] == "" {
						t.Errorf("%s: package variable %s; make it a constant, a function or a field", s.set.Position(v.Pos()), v.Names[0].Name)
					}
				}
			}
		}
	}
}

// A test that sleeps is slow where it passes and flaky where the machine is busy: wait for what happens, or use
// testing/synctest, whose clock costs nothing.
func TestTestsDoNotSleep(t *testing.T) {
	for _, s := range sources(t) {
		if !s.test {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok && sel.Sel.Name == "Sleep" {
				if id, ok := sel.X.(*ast.Ident); ok && id.Name == "time" {
					t.Errorf("%s sleeps", s.set.Position(n.Pos()))
				}
			}
			return true
		})
	}
}

// What is not done stands in the README's table of states or in an issue, where users see it.
func TestNothingIsLeftForLater(t *testing.T) {
	marker := regexp.MustCompile(`\b(TODO|FIXME|XXX|HACK)\b`)
	for _, s := range sources(t) {
		if s.pkg == "internal/archtest" {
			continue
		}
		for _, g := range s.file.Comments {
			if m := marker.FindString(g.Text()); m != "" {
				t.Errorf("%s: %s in a comment", s.set.Position(g.Pos()), m)
			}
		}
	}
}

// constant accepts variables that nobody changes: sentinels, compiled patterns, interface checks, embedded files.
func constant(d *ast.GenDecl, v *ast.ValueSpec) bool {
	if v.Names[0].Name == "_" || d.Doc != nil && strings.Contains(docText(d), "go:embed") || v.Doc != nil && strings.Contains(rawText(v.Doc), "go:embed") {
		return true
	}
	for _, e := range v.Values {
		call, ok := e.(*ast.CallExpr)
		if !ok {
			return false
		}
		sel, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return false
		}
		x, ok := sel.X.(*ast.Ident)
		if !ok || !slices.Contains([]string{"errors.New", "fmt.Errorf", "regexp.MustCompile", "strings.NewReplacer"}, x.Name+"."+sel.Sel.Name) {
			return false
		}
	}
	return len(v.Values) > 0
}

func docText(d *ast.GenDecl) string { return rawText(d.Doc) }

func rawText(g *ast.CommentGroup) string {
	var b strings.Builder
	for _, c := range g.List {
		b.WriteString(c.Text)
	}
	return b.String()
}
