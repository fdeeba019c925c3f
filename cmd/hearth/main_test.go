package main

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"hearth/internal/toygguf"
)

// The scripts in testdata run the real main in a process of its own.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"hearth": func() {
			os.Exit(run(context.Background(), os.Args[1:], os.Environ(), os.Stdin, os.Stdout, os.Stderr))
		},
	})
}

func TestScripts(t *testing.T) { testscript.Run(t, params("testdata/script")) }

// params gives every script a home of its own and the commands below.
func params(dir string) testscript.Params {
	return testscript.Params{
		Dir: dir,
		Setup: func(e *testscript.Env) error {
			machines, err := filepath.Abs("../../backends/fixtures/machines")
			if err != nil {
				return err
			}
			e.Vars = append(e.Vars, "MACHINES="+machines)
			for _, dir := range []string{"home", "data", "cache", "state", "config", "run"} {
				if err := os.MkdirAll(e.WorkDir+"/"+dir, 0o755); err != nil {
					return err
				}
			}
			e.Vars = append(e.Vars, "HOME="+e.WorkDir+"/home", "XDG_DATA_HOME="+e.WorkDir+"/data", "XDG_CACHE_HOME="+e.WorkDir+"/cache",
				"XDG_STATE_HOME="+e.WorkDir+"/state", "XDG_CONFIG_HOME="+e.WorkDir+"/config", "HEARTH_RUNTIME=/tmp/hearth-test",
				"HEARTH_ENGINE_DIR="+e.WorkDir+"/engine", "HEARTH_LISTEN=127.0.0.1:1")
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			// toy PATH [KIND]: write a small model
			"toy": func(ts *testscript.TestScript, _ bool, args []string) {
				s := toygguf.Spec{Kind: toygguf.Llama, Vocab: toygguf.MinVocab, Embd: 32, Layers: 1, Heads: 2, HeadsKV: 1, Context: 2048}
				if len(args) > 1 {
					s = toygguf.Spec{Kind: toygguf.Kind(args[1])}
				}
				ts.Check(toygguf.Write(ts.MkAbs(args[0]), s))
			},
			// cut PATH N: shorten a file by N bytes
			"cut": func(ts *testscript.TestScript, _ bool, args []string) {
				st, err := os.Stat(ts.MkAbs(args[0]))
				ts.Check(err)
				n, err := strconv.ParseInt(args[1], 10, 64)
				ts.Check(err)
				ts.Check(os.Truncate(ts.MkAbs(args[0]), st.Size()-n))
			},
			"ready": ready,
		},
	}
}

// Every command says what it does, and every flag too.
func TestHelpIsComplete(t *testing.T) {
	var out, errs strings.Builder
	a := newApp(nil, strings.NewReader(""), &out, &errs)
	todo := a.root().Commands()
	for len(todo) > 0 {
		c := todo[0]
		todo = append(todo[1:], c.Commands()...)
		if c.Short == "" || c.RunE != nil && c.Args == nil {
			t.Errorf("%s has no description or takes any arguments", c.CommandPath())
		}
	}
}
