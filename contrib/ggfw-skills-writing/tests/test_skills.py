from ggfw_skills_writing import SKILLS, ggfw_register_skills

from ggfw.chat.skills import Skills
from ggfw.descriptors import resolve
from ggfw.testing import check_skill


def test_conforms() -> None:
    for skill in ggfw_register_skills():
        check_skill(skill)


def test_each_file_is_its_own() -> None:
    skills = Skills(ggfw_register_skills())
    bodies = {resolve(skill.load)() for skill in skills.values()}
    assert not skills.warnings and list(skills) == list(SKILLS) and len(bodies) == len(SKILLS)
