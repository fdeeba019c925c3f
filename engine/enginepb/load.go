package enginepb

import "hearth/engine"

// FromLoadSpec converts a load order for the wire.
func FromLoadSpec(s *engine.LoadSpec) *LoadSpec {
	out := &LoadSpec{
		Name: s.Name, Path: s.Path, Backend: s.Backend, Device: s.Device, WantPci: s.WantPCI,
		GpuLayers: int64(s.GPULayers), Context: int64(s.Context), Cells: int64(s.Cells),
		MaxSequences: int64(s.MaxSequences), Chunk: int64(s.Chunk), Threads: int64(s.Threads),
		FlashAttention: s.FlashAttention, KvTypeK: s.KVTypeK, KvTypeV: s.KVTypeV, KvLayout: s.KVLayout,
		Mmap: s.MMap, Mlock: s.MLock, Mode: s.Mode, Pooling: s.Pooling, ItlTargetNs: int64(s.ITLTarget),
		QueueLimit: int64(s.QueueLimit), TenantCache: s.TenantCache, HostCache: s.HostCache, WindowCache: s.WindowCache,
		CpuBlas: s.CPUBLAS,
	}
	for _, l := range s.LoRA {
		out.Lora = append(out.Lora, &LoRA{Path: l.Path, Scale: l.Scale})
	}
	return out
}

// ToLoadSpec is the inverse of FromLoadSpec.
func ToLoadSpec(s *LoadSpec) engine.LoadSpec {
	out := engine.LoadSpec{
		Name: s.GetName(), Path: s.GetPath(), Backend: s.GetBackend(), Device: s.GetDevice(), WantPCI: s.GetWantPci(),
		GPULayers: int(s.GetGpuLayers()), Context: int(s.GetContext()), Cells: int(s.GetCells()),
		MaxSequences: int(s.GetMaxSequences()), Chunk: int(s.GetChunk()), Threads: int(s.GetThreads()),
		FlashAttention: s.GetFlashAttention(), KVTypeK: s.GetKvTypeK(), KVTypeV: s.GetKvTypeV(), KVLayout: s.GetKvLayout(),
		MMap: s.GetMmap(), MLock: s.GetMlock(), Mode: s.GetMode(), Pooling: s.GetPooling(),
		ITLTarget: duration(s.GetItlTargetNs()), QueueLimit: int(s.GetQueueLimit()), TenantCache: s.GetTenantCache(), HostCache: s.GetHostCache(),
		WindowCache: s.GetWindowCache(), CPUBLAS: s.GetCpuBlas(),
	}
	for _, l := range s.GetLora() {
		out.LoRA = append(out.LoRA, engine.LoRA{Path: l.GetPath(), Scale: l.GetScale()})
	}
	return out
}

// FromInfo converts a loaded model's description for the wire.
func FromInfo(i *engine.Info) *Info {
	out := &Info{
		Name: i.Name, Architecture: i.Architecture, Description: i.Description, Path: i.Path,
		SizeBytes: i.SizeBytes, Params: i.Params, VocabSize: int64(i.VocabSize), EmbeddingLen: int64(i.EmbeddingLen),
		ContextTrain: int64(i.ContextTrain), Context: int64(i.Context), Cells: int64(i.Cells), WindowCells: int64(i.WindowCells),
		MaxSequences: int64(i.MaxSequences), ChatTemplate: i.ChatTemplate, Bos: i.BOS, Eos: i.EOS, AddsBos: i.AddsBOS,
		Embedding: i.Embedding, Rerank: i.Rerank, Recurrent: i.Recurrent, Hybrid: i.Hybrid,
		SlidingWindow: int64(i.SlidingWindow), Backend: i.Backend, KvLayout: i.KVLayout, LlamaVersion: i.LlamaVersion,
		LoadTimeNs: int64(i.LoadTime),
		Device: &Device{
			Name: i.Device.Name, Description: i.Device.Description, Pci: i.Device.PCI,
			MemoryFree: i.Device.MemoryFree, MemoryTotal: i.Device.MemoryTotal,
		},
	}
	for _, f := range i.Features {
		out.Features = append(out.Features, &Feature{Name: f.Name, On: f.On, Reason: f.Reason})
	}
	return out
}

// ToInfo is the inverse of FromInfo.
func ToInfo(i *Info) engine.Info {
	d := i.GetDevice()
	out := engine.Info{
		Name: i.GetName(), Architecture: i.GetArchitecture(), Description: i.GetDescription(), Path: i.GetPath(),
		SizeBytes: i.GetSizeBytes(), Params: i.GetParams(), VocabSize: int(i.GetVocabSize()),
		EmbeddingLen: int(i.GetEmbeddingLen()), ContextTrain: int(i.GetContextTrain()), Context: int(i.GetContext()),
		Cells: int(i.GetCells()), WindowCells: int(i.GetWindowCells()), MaxSequences: int(i.GetMaxSequences()), ChatTemplate: i.GetChatTemplate(),
		BOS: i.GetBos(), EOS: i.GetEos(), AddsBOS: i.GetAddsBos(), Embedding: i.GetEmbedding(), Rerank: i.GetRerank(),
		Recurrent: i.GetRecurrent(), Hybrid: i.GetHybrid(), SlidingWindow: int(i.GetSlidingWindow()),
		Backend: i.GetBackend(), KVLayout: i.GetKvLayout(), LlamaVersion: i.GetLlamaVersion(),
		LoadTime: duration(i.GetLoadTimeNs()),
		Device: engine.Device{
			Name: d.GetName(), Description: d.GetDescription(), PCI: d.GetPci(),
			MemoryFree: d.GetMemoryFree(), MemoryTotal: d.GetMemoryTotal(),
		},
	}
	for _, f := range i.GetFeatures() {
		out.Features = append(out.Features, engine.Feature{Name: f.GetName(), On: f.GetOn(), Reason: f.GetReason()})
	}
	return out
}

// FromStats converts a worker's state for the wire.
func FromStats(s *engine.Stats) *Stats {
	return &Stats{
		Running: int64(s.Running), Waiting: int64(s.Waiting), CellsUsed: int64(s.CellsUsed),
		CellsTotal: int64(s.CellsTotal), CellsCached: int64(s.CellsCached), Steps: s.Steps,
		PromptTokens: s.PromptTokens, CachedTokens: s.CachedTokens, CompletionTokens: s.CompletionTokens,
		Preemptions: s.Preemptions, Evictions: s.Evictions, GraphsReused: s.GraphsReused, Mismatches: s.Mismatches,
		LastStepNs: int64(s.LastStep), DecodeRows: int64(s.DecodeRows), PrefillRows: int64(s.PrefillRows),
		HostPrefixes: int64(s.HostPrefixes), HostTokens: int64(s.HostTokens), HostBytes: s.HostBytes, HostLimit: s.HostLimit,
		HostSaves: s.HostSaves, HostLoads: s.HostLoads, KvLayout: s.KVLayout,
	}
}

// ToStats is the inverse of FromStats.
func ToStats(s *Stats) engine.Stats {
	return engine.Stats{
		Running: int(s.GetRunning()), Waiting: int(s.GetWaiting()), CellsUsed: int(s.GetCellsUsed()),
		CellsTotal: int(s.GetCellsTotal()), CellsCached: int(s.GetCellsCached()), Steps: s.GetSteps(),
		PromptTokens: s.GetPromptTokens(), CachedTokens: s.GetCachedTokens(), CompletionTokens: s.GetCompletionTokens(),
		Preemptions: s.GetPreemptions(), Evictions: s.GetEvictions(), GraphsReused: s.GetGraphsReused(), Mismatches: s.GetMismatches(),
		LastStep: duration(s.GetLastStepNs()), DecodeRows: int(s.GetDecodeRows()), PrefillRows: int(s.GetPrefillRows()),
		HostPrefixes: int(s.GetHostPrefixes()), HostTokens: int(s.GetHostTokens()), HostBytes: s.GetHostBytes(), HostLimit: s.GetHostLimit(),
		HostSaves: s.GetHostSaves(), HostLoads: s.GetHostLoads(), KVLayout: s.GetKvLayout(),
	}
}
