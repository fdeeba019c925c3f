package vulkan

import (
	"errors"
	"fmt"
	"strings"

	"hearth/backends"
)

// Settings of vulkan_driver.
const (
	DriverAuto   = "auto"
	DriverHost   = "host"
	DriverBundle = "bundle"
)

// BundleMesa is the Mesa that an engine bundle brings; its zero value says that it brings none.
type BundleMesa struct {
	Manifest string // absolute path of its RADV manifest, what VK_DRIVER_FILES is set to
	Version  backends.Optional[Version]
}

// Choice is the Vulkan driver a worker is given.
type Choice struct {
	// Driver is DriverHost, DriverBundle, or "" when there is none.
	Driver string `json:"driver"`
	// Env are the variables to set ("VK_DRIVER_FILES=..."); empty with the host's driver.
	Env    []string `json:"env,omitempty"`
	Reason string   `json:"reason"`
	// Stale says that the driver chosen is too old for the GPU's matrix instructions: prefill will be slow.
	Stale bool `json:"stale,omitempty"`
}

// ErrNoDriver is wrapped by Decide when the setting cannot be followed.
var ErrNoDriver = errors.New("no such Vulkan driver")

// MatrixMesa is the first Mesa whose RADV offers cooperative matrices (VK_KHR_cooperative_matrix) on a gfx target;
// unknown for targets that have no matrix instructions, where an old Mesa costs nothing. (Release notes: 23.3 brought
// the extension for gfx11, 25.0 for gfx12.)
func MatrixMesa(gfx string) backends.Optional[Version] {
	major, _, _, ok := backends.GFXVersion(gfx)
	switch {
	case ok && major == 11:
		return backends.Some(Version{23, 3, 0})
	case ok && major >= 12:
		return backends.Some(Version{25, 0, 0})
	}
	return backends.Optional[Version]{}
}

// Decide chooses between the host's driver and the bundle's for GPUs of the given targets. With "auto" (or "") the host
// wins, because it is what the rest of the system is tested with, unless it has no driver for an AMD GPU, or its Mesa
// is too old for the GPU's matrix instructions and the bundle's is newer.
func Decide(setting string, inv Inventory, bundle BundleMesa, gfx []string) (Choice, error) {
	host, found := hostDriver(inv)
	fromBundle := func(reason string) Choice {
		return Choice{Driver: DriverBundle, Env: []string{"VK_DRIVER_FILES=" + bundle.Manifest}, Reason: reason}
	}
	switch setting {
	case DriverHost:
		if !found {
			return Choice{}, fmt.Errorf("%w: vulkan_driver is host, and %s", ErrNoDriver, missing(inv))
		}
		need, old := tooOld(host, gfx)
		c := Choice{Driver: DriverHost, Reason: "vulkan_driver is host", Stale: old}
		if old {
			c.Reason += "; " + staleText(host, need)
		}
		return c, nil
	case DriverBundle:
		if bundle.Manifest == "" {
			return Choice{}, fmt.Errorf("%w: vulkan_driver is bundle, and the bundle has no Mesa (build it with HEARTH_MESA=ON)", ErrNoDriver)
		}
		return fromBundle("vulkan_driver is bundle"), nil
	case "", DriverAuto:
	default:
		return Choice{}, fmt.Errorf("%w: vulkan_driver is %q, must be auto, host or bundle", ErrNoDriver, setting)
	}
	if !found {
		if bundle.Manifest == "" {
			return Choice{Reason: missing(inv) + ", and the bundle has no Mesa"}, nil
		}
		return fromBundle(missing(inv)), nil
	}
	if inv.Source != "" {
		return Choice{Driver: DriverHost, Reason: inv.Source + " is set and names " + host.Manifest}, nil
	}
	need, old := tooOld(host, gfx)
	if !old {
		return Choice{Driver: DriverHost, Reason: "the host has " + host.describe()}, nil
	}
	hostMesa, _ := host.Mesa.Get()
	if v, ok := bundle.Version.Get(); bundle.Manifest != "" && (!ok || hostMesa.Less(v)) {
		return fromBundle(staleText(host, need)), nil
	}
	return Choice{Driver: DriverHost, Stale: true, Reason: staleText(host, need) + "; the bundle has no newer one (HEARTH_MESA=ON)"}, nil
}

// hostDriver is the driver the loader would give an AMD GPU: RADV before AMD's own two.
func hostDriver(inv Inventory) (ICD, bool) {
	for _, want := range []string{RADV, AMDVLK, AMDProprietary} {
		for _, icd := range inv.ICDs {
			if icd.Driver == want && icd.Usable() {
				return icd, true
			}
		}
	}
	return ICD{}, false
}

// tooOld says whether the host's Mesa is known to lack the matrix extension for one of the targets.
func tooOld(icd ICD, gfx []string) (need Version, old bool) {
	have, ok := icd.Mesa.Get()
	if !ok || icd.Driver != RADV {
		return Version{}, false
	}
	for _, g := range gfx {
		if v, ok := MatrixMesa(g).Get(); ok && have.Less(v) && need.Less(v) {
			need, old = v, true
		}
	}
	return need, old
}

func (i ICD) describe() string {
	if v, ok := i.Mesa.Get(); ok {
		return fmt.Sprintf("Mesa %s (%s)", v, i.Driver)
	}
	return fmt.Sprintf("%s (%s)", i.Driver, i.Manifest)
}

func staleText(icd ICD, need Version) string {
	return fmt.Sprintf("the host's Mesa %s has no cooperative matrices for this GPU, %d.%d has", icd.Mesa.Or(Version{}), need.Major, need.Minor)
}

// missing says why the host has no driver for an AMD GPU.
func missing(inv Inventory) string {
	var broken []string
	for _, icd := range inv.ICDs {
		if icd.AMD() && icd.Skipped == "" && icd.Library == "" {
			broken = append(broken, icd.Manifest+" names "+icd.LibraryName+", which is not there")
		} else if icd.AMD() && icd.Skipped != "" {
			broken = append(broken, icd.Manifest+" is "+icd.Skipped)
		}
	}
	if len(broken) > 0 {
		return "the host's AMD driver cannot be used: " + strings.Join(broken, "; ")
	}
	if inv.Source != "" {
		return inv.Source + " names no driver for AMD GPUs"
	}
	return "the host has no Vulkan driver for AMD GPUs"
}
