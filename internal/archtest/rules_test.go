package archtest

// layer says what the packages below a path may import of ours. "x" is the package itself, "x/..." it and all below.
// The first layer that matches counts, so special cases stand before general ones. What is not listed is banned.
type layer struct {
	pkg   string
	allow []string
	// why is the reason behind the ban of everything else.
	why string
}

func layers() []layer {
	return []layer{
		{"cmd/hearth", []string{"..."}, ""},
		{"cmd/hearth-engine", []string{"engine/..."},
			"the worker is one model on one backend; what it needs to know comes over its socket"},
		{"scripts/...", []string{"engine/bundle", "backends/...", "scripts/...", "internal/..."},
			"build tools make the bundle that everything else needs, so they may not need anything that needs it"},

		{"server/...", []string{"server/...", "chat/...", "engine", "models", "backends", "backends/..."},
			"handlers see a model through the engine interface, never the process, store or file behind it"},

		{"chat/...", []string{"chat/..."},
			"prompts and messages are text; without HTTP and engine they can be tested against every template there is"},

		{"engine", nil, "the domain has values and one interface; everybody imports it, so it imports nobody"},
		{"engine/llama", nil, "the binding says what llama.cpp can do; policy lives above it"},
		{"engine/batch/...", []string{"engine", "engine/prefix", "engine/batch/..."},
			"the scheduler is a pure value: golden scripts drive it without engine, clock or I/O"},
		{"engine/prefix", nil, "the prefix tree counts tokens and cells, nothing else"},
		{"engine/bundle", nil, "the bundle's manifest is read by build tools before the engine exists"},
		{"engine/enginepb", []string{"engine"}, "the wire format is translated to the domain here and known nowhere else"},
		{"engine/enginetest", []string{"engine"}, "a fake engine is used in tests of packages that must not see a real one"},
		{"engine/supervisor", []string{"engine", "engine/enginepb"},
			"the supervisor outlives workers because it shares no code with what can crash"},
		{"engine/worker/native", []string{"engine", "engine/batch", "engine/llama", "engine/worker"}, "the only bridge from the loop to cgo"},
		{"engine/worker", []string{"engine", "engine/batch", "engine/prefix", "engine/enginepb"},
			"the step loop runs against an interface, so that a test needs no llama.cpp"},
		{"engine/...", []string{"engine", "engine/..."}, "the engine never knows who asks: server, store and settings are above it"},

		{"backends/...", []string{"backends", "backends/...", "engine/bundle"},
			"device discovery is used by doctor and build tools, on machines where nothing else works"},

		{"models", []string{"models/gguf"}, "the store keeps files; where they come from and who runs them is above it"},
		{"models/gguf", nil, "a header is read without a store"},
		{"models/fit", []string{"models/gguf"}, "an estimate needs the header alone"},
		{"models/hub", []string{"models", "models/gguf"}, "sources deliver files to the store and know nothing of serving"},

		{"configs", nil, "settings are plain values; cmd hands them down so that no component depends on their source"},
		{"bench/...", []string{"bench/...", "engine", "engine/bundle", "models", "models/gguf", "backends", "backends/..."},
			"a benchmark of a server must not share the server's code"},
		{"internal/...", []string{"internal/...", "backends", "backends/..."}, "helpers of tests"},
		{"web", nil, "embedded files"},
	}
}

// foreign bans outside packages except below some paths.
type foreign struct {
	imports string // exactly, or "x/..."
	only    []string
	why     string
}

func foreigns() []foreign {
	return []foreign{
		{"C", []string{"engine/llama"}, "cgo has one home; everything else builds with CGO_ENABLED=0"},
		{"unsafe", []string{"engine/llama", "engine/enginepb"}, "memory that C owns is handled where C is"},
		{"github.com/gin-gonic/gin", []string{"server/..."}, "HTTP stays in the server"},
		{"github.com/spf13/cobra", []string{"cmd/hearth"}, "commands are wired in one place"},
		{"github.com/spf13/viper", []string{"configs"}, "settings are read in one place"},
		{"github.com/gpustack/gguf-parser-go", []string{"models/gguf", "models/fit"}, "files are checked before the parser sees them"},
		{"github.com/ardanlabs/jinja", []string{"chat/template"}, "templates run within a budget"},
		{"google.golang.org/grpc/...", []string{"engine/enginepb", "engine/supervisor", "engine/worker", "cmd/hearth-engine"},
			"the protocol between front end and worker is an implementation detail"},
		{"net/http", []string{"server/...", "models/hub", "cmd/hearth", "cmd/hearth-engine", "bench/...", "backends/doctor/...", "scripts/..."},
			"only servers and downloads speak HTTP"},
		{"os/exec", []string{"engine/supervisor", "backends/probe", "backends/doctor/...", "models/hub", "cmd/hearth", "bench/...", "scripts/...", "internal/..."},
			"children are started where somebody watches them"},
		{"plugin", nil, "plugins cannot be unloaded"},
	}
}

// longFunctions may have more than 120 lines: tables and enum switches only.
func longFunctions() map[string]string {
	return map[string]string{
		"backends/probe.Symptoms":               "table",
		"backends/doctor.table":                 "table",
		"internal/archtest.layers":              "table",
		"server.TestBadInput":                   "table",
		"models/gguf.TestCheckRefuses":          "table",
		"models/hub.TestDownloadThroughMishaps": "table",
	}
}

// environment lists the files that may read the process's environment, beside package configs and tests.
func environment() map[string]string {
	return map[string]string{
		"cmd/hearth/main.go":        "hands it to run",
		"cmd/hearth-engine/main.go": "hands it to run",
		"scripts/engine/main.go":    "hands it to run",
		"bench/peers/process.go":    "peers get what they would get from a shell",
	}
}

// packageVariables may be variables of a package, beside errors, compiled patterns, interface checks and embedded files.
func packageVariables() map[string]string {
	return map[string]string{
		"engine/batch.buckets": "an array that is only read",
		"engine/batch.sizes":   "an array that is only read",
		"internal/toygguf.le":  "short for binary.LittleEndian",
	}
}
