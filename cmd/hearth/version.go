package main

import (
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// release is the version of the next release; builds from a tagged module say their own.
const release = "0.1.0"

// version is release with the commit it was built from, where the build knows it.
func version() string {
	bi, ok := debug.ReadBuildInfo()
	if !ok {
		return release
	}
	rev, dirty := "", ""
	for _, s := range bi.Settings {
		switch s.Key {
		case "vcs.revision":
			rev = s.Value
		case "vcs.modified":
			if s.Value == "true" {
				dirty = ".dirty"
			}
		}
	}
	if len(rev) < 12 {
		return release
	}
	return release + "+" + rev[:12] + dirty
}

func (a *app) versionCmd() *cobra.Command {
	return a.jsonFlag(&cobra.Command{
		Use:   "version",
		Short: "print the versions of hearth and its engine",
		Args:  args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			out := struct {
				Version string `json:"version"`
				Go      string `json:"go"`
				Engine  string `json:"engine,omitempty"` // bundle
				Llama   string `json:"llama_version,omitempty"`
				GGML    string `json:"ggml_version,omitempty"`
			}{Version: version()}
			if bi, ok := debug.ReadBuildInfo(); ok {
				out.Go = strings.TrimPrefix(bi.GoVersion, "go")
			}
			// A missing or broken bundle is not this command's business.
			if cfg, err := a.config(cmd); err == nil {
				if b, err := a.bundle(cfg); err == nil {
					out.Engine, out.Llama, out.GGML = b.Name, b.LlamaVersion, b.GGMLVersion
				}
			}
			if a.json {
				return a.printJSON(out)
			}
			a.printf("hearth %s (go %s)\n", out.Version, out.Go)
			if out.Engine != "" {
				a.printf("engine %s: llama.cpp %s, ggml %s\n", out.Engine, out.Llama, out.GGML)
			}
			return nil
		},
	})
}
