"""An nvidia-smi that tells of one GPU what a file says: ``{"dram_uncorrectable": 0, "crc": 0}``."""

from __future__ import annotations

import stat
from pathlib import Path

SCRIPT = """#!/bin/sh
read dram sram crc <"{said}"
[ "$dram" = hang ] && exec sleep 60
if [ "$1" = nvlink ]; then
    echo "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0)"
    echo "	 Link 0: Replay Errors: 0"
    echo "	 Link 0: CRC Errors: $crc"
    exit
fi
cat <<XML
<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
  <attached_gpus>1</attached_gpus>
  <gpu id="00000000:19:00.0">
    <product_name>NVIDIA H100 80GB HBM3</product_name>
    <pci><pci_bus>19</pci_bus><replay_counter>0</replay_counter><replay_rollover_counter>0</replay_rollover_counter></pci>
    <ecc_errors>
      <volatile>
        <sram_correctable>$sram</sram_correctable><sram_uncorrectable_parity>0</sram_uncorrectable_parity>
        <dram_correctable>0</dram_correctable><dram_uncorrectable>$dram</dram_uncorrectable>
      </volatile>
      <aggregate><dram_uncorrectable>7</dram_uncorrectable></aggregate>
    </ecc_errors>
    <retired_pages>
      <multiple_single_bit_retirement><retired_count>N/A</retired_count></multiple_single_bit_retirement>
    </retired_pages>
    <remapped_rows><remapped_row_corr>0</remapped_row_corr><remapped_row_pending>No</remapped_row_pending></remapped_rows>
  </gpu>
</nvidia_smi_log>
XML
"""


class FakeSmi:
    """To be put on PATH: ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._said = folder, folder / "said"
        self.says(0, 0, 0)
        script = folder / "nvidia-smi"
        script.write_text(SCRIPT.format(said=self._said))
        script.chmod(script.stat().st_mode | stat.S_IXUSR)

    def says(self, dram_uncorrectable: int | str, sram_correctable: int, crc: int) -> None:
        self._said.write_text(f"{dram_uncorrectable} {sram_correctable} {crc}\n")
