package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// firstTokens asks a question whose answer is sure of every token: where two tokens are nearly equally likely, the last bits
// of a sum decide, and those differ between any two backends. It asks for 32 greedy tokens with log-probabilities and returns the tokens' texts.
func firstTokens(t *testing.T, s *server) []string {
	t.Helper()
	body := user("Repeat this exactly: the cat sat on the mat. the cat sat on the mat. the cat sat on the mat. the cat sat on the mat. the cat sat on the mat.", 32)
	body["logprobs"] = true
	code, _, out := s.post("/v1/chat/completions", body)
	var r struct {
		Choices []struct {
			Logprobs struct {
				Content []struct{ Token string }
			}
		}
	}
	if err := json.Unmarshal(out, &r); code != 200 || err != nil || len(r.Choices) != 1 {
		t.Fatalf("status %d, %v: %s", code, err, out)
	}
	var tokens []string
	for _, c := range r.Choices[0].Logprobs.Content {
		tokens = append(tokens, c.Token)
	}
	return tokens
}

func TestVulkanGivesTheCPUsTokens(t *testing.T) {
	icd := filepath.Join(root(t), "build", "testmesa", "icd.d", "lvp_icd.json")
	if _, err := os.Stat(icd); err != nil {
		t.Skipf("no Mesa test prefix (make testmesa): %v", err)
	}
	want := firstTokens(t, serve(t, []string{"--backend", "cpu", "--parallel", "1", "--context", "512"}, "HEARTH_CHUNK=32"))
	got := firstTokens(t, serve(t, []string{"--backend", "vulkan", "--parallel", "1", "--context", "512"}, "VK_DRIVER_FILES="+icd, "GGML_VK_VISIBLE_DEVICES=0", "HEARTH_CHUNK=32"))
	if len(want) != 32 || len(got) != 32 {
		t.Fatalf("%d tokens on the CPU, %d on Vulkan; want 32", len(want), len(got))
	}
	for i := range want {
		if want[i] != got[i] {
			t.Fatalf("token %d is %q on Vulkan, %q on the CPU", i, got[i], want[i])
		}
	}
}
