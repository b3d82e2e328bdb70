"""``swarm-sim calibrate``: what measured machines say about a scenario."""

from __future__ import annotations

import json
from pathlib import Path

import click

from simulations.calibration import Setting, calibrate, group_index_of, words
from simulations.commands.options import json_option
from simulations.profile_file import read_profiles
from simulations.scenario_file import ScenarioFile, read_scenario
from swarm.capacity.profile import Profile, measurements
from swarm.errors import UsageError


@click.command("calibrate")
@click.argument("profiles", nargs=-1, required=True, type=click.Path(path_type=Path),
                metavar="PROFILE…")  # fmt: skip
@click.option(
    "--scenario", type=click.Path(path_type=Path), metavar="FILE",
    help="Check the keys against this scenario, and say which of its groups was measured.",
)  # fmt: skip
@click.option("--group", metavar="NAME", help="The group of nodes that was measured.")
@click.option(
    "--write", type=click.Path(path_type=Path), metavar="FILE",
    help="Write the keys as words for --set, one a line.",
)  # fmt: skip
@json_option
def calibrate_command(
    profiles: tuple[Path, ...],
    scenario: Path | None,
    group: str | None,
    write: Path | None,
    as_json: bool,
) -> None:
    """Print the scenario keys that the profiles of `swarm bench fleet` set.

    Several profiles count as one whose numbers are their medians.
    """
    profile = read_profiles(profiles)
    settings = settings_for(profile, scenario, group)
    if scenario is not None:
        # Whatever does not fit together is said here and not at the next run.
        read_scenario(scenario, words(settings))
    if write is not None:
        _write(write, settings)
    if as_json:
        click.echo(json.dumps(_document(profile, settings), allow_nan=False))
        return
    machine = profile.machine
    click.echo(f"# {machine.host or 'unknown machine'}, {profile.measured_at}", err=True)
    width = max(len(setting.word) for setting in settings) if settings else 0
    for setting in settings:
        click.echo(f"--set '{setting.word}'{'':{width - len(setting.word)}}  # {setting.source}")


def settings_for(profile: Profile, scenario: Path | None, group: str | None) -> list[Setting]:
    """The keys for this scenario; without one, for a scenario with one group."""
    if scenario is None:
        if group is not None:
            raise UsageError("--group needs the scenario", hint="give --scenario FILE")
        return calibrate(profile)
    return calibrate(profile, group_index_of(_group_names(read_scenario(scenario)), group))


def profile_words(path: Path, profile_path: Path, group: str | None) -> tuple[str, ...]:
    """What a profile sets in a scenario, as `--set` takes it; raises UsageError."""
    return words(settings_for(read_profiles([profile_path]), path, group))


def _group_names(read: ScenarioFile) -> list[str]:
    return [group.name for group in read.scenario.groups]


def _write(path: Path, settings: list[Setting]) -> None:
    try:
        path.write_text("".join(f"--set={word}\n" for word in words(settings)))
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error}", object_name=str(path)) from error


def _document(profile: Profile, settings: list[Setting]) -> dict[str, object]:
    return {
        "measured_at": profile.measured_at,
        "host": profile.machine.host,
        "measurements": measurements(profile),
        "settings": [
            {"key": setting.key, "value": setting.value, "source": setting.source}
            for setting in settings
        ],
    }
